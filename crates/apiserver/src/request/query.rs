//! The query of a request.
//! Read by `request_info` and by the options of each verb.
//! Keeps repeated parameters in order (`command=sh&command=-c`).

use api::ApiError;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(text: &str) -> Self {
        let decode =
            |part: &str| percent_encoding::percent_decode_str(&part.replace('+', " ")).decode_utf8_lossy().into_owned();
        let pairs = text.split('&').filter(|p| !p.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        });
        Self(pairs.collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The value unless it is absent or empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|v| !v.is_empty())
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// True for `watch`, `watch=1`, `watch=true`, as upstream reads booleans.
    pub fn flag(&self, name: &str) -> bool {
        self.optional_flag(name).unwrap_or(false)
    }

    pub fn optional_flag(&self, name: &str) -> Option<bool> {
        self.get(name).map(|v| v != "0" && !v.eq_ignore_ascii_case("false"))
    }

    pub fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let parse = |v: &str| {
            v.parse().map_err(|_| ApiError::bad_request(format!("strconv.ParseInt: parsing \"{v}\": invalid syntax")))
        };
        self.text(name).map(parse).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::Query;

    #[test]
    fn reads_pairs_in_order() {
        let q = Query::parse("command=sh&command=-c&watch&labelSelector=a%3Db+c&x=0");
        assert_eq!(q.all("command").collect::<Vec<_>>(), ["sh", "-c"]);
        assert!(q.flag("watch") && !q.flag("x") && !q.flag("absent"));
        assert_eq!(q.get("labelSelector"), Some("a=b c"));
        assert!(Query::parse("limit=z").number("limit").is_err());
    }
}
