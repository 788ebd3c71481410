//! Sets of processors, read and written in the kernel's list format ("0-3,8").
//! Used all over the crate, for other ids (cores, sockets, NUMA nodes) too.
//! Invariant: pure (tidy: `pure_files`).

use std::{collections::BTreeSet, fmt};

/// Far above what a kernel is built for; a torn file must not make us fill the memory.
const ID_MAX: usize = 65_535;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<usize>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuSetError {
    #[error("strconv.Atoi: parsing {0:?}: invalid syntax")]
    Syntax(String),
    #[error("strconv.Atoi: parsing {0:?}: value out of range")]
    OutOfRange(String),
    #[error("invalid range {range:?} ({start} > {end})")]
    Range { range: String, start: usize, end: usize },
}

impl CpuSet {
    pub fn parse(list: &str) -> Result<Self, CpuSetError> {
        let mut cpus = BTreeSet::new();
        if list.is_empty() {
            return Ok(Self(cpus));
        }
        for range in list.split(',') {
            match range.split_once('-') {
                None => drop(cpus.insert(id(range)?)),
                Some((start, end)) => {
                    let (start, end) = (id(start)?, id(end)?);
                    if start > end {
                        return Err(CpuSetError::Range { range: range.into(), start, end });
                    }
                    cpus.extend(start..=end);
                }
            }
        }
        Ok(Self(cpus))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }

    pub fn union(&self, other: &Self) -> Self {
        Self(&self.0 | &other.0)
    }

    pub fn intersection(&self, other: &Self) -> Self {
        Self(&self.0 & &other.0)
    }

    pub fn difference(&self, other: &Self) -> Self {
        Self(&self.0 - &other.0)
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }
}

fn id(text: &str) -> Result<usize, CpuSetError> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(CpuSetError::Syntax(text.into()));
    }
    text.parse().ok().filter(|id| *id <= ID_MAX).ok_or_else(|| CpuSetError::OutOfRange(text.into()))
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(ids: I) -> Self {
        Self(ids.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ids = self.iter().peekable();
        let mut separator = "";
        while let Some(start) = ids.next() {
            let mut end = start;
            while let Some(next) = ids.next_if(|next| *next == end + 1) {
                end = next;
            }
            match end == start {
                true => write!(f, "{separator}{start}")?,
                false => write!(f, "{separator}{start}-{end}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_the_kernels() {
        let check = |text: &str, ids: &[usize], printed: &str| {
            let set = CpuSet::parse(text).unwrap();
            assert_eq!(set.iter().collect::<Vec<_>>(), ids, "{text}");
            assert_eq!(set.to_string(), printed);
        };
        check("", &[], "");
        check("5", &[5], "5");
        check("1,2,3,4,5", &[1, 2, 3, 4, 5], "1-5");
        check("1-2,3-5", &[1, 2, 3, 4, 5], "1-5");
        check("5,4,0-1,1", &[0, 1, 4, 5], "0-1,4-5");
        check("1-1,3", &[1, 3], "1,3");
    }

    #[test]
    fn bad_lists_are_refused() {
        let check = |text: &str, expected: &str| assert_eq!(CpuSet::parse(text).unwrap_err().to_string(), expected);
        check("1.3", r#"strconv.Atoi: parsing "1.3": invalid syntax"#);
        check("1,", r#"strconv.Atoi: parsing "": invalid syntax"#);
        check("-1", r#"strconv.Atoi: parsing "": invalid syntax"#);
        check("3-1", r#"invalid range "3-1" (3 > 1)"#);
        check("0-99999999999999", r#"strconv.Atoi: parsing "99999999999999": value out of range"#);
    }
}
