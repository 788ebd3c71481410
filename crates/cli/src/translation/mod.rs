//! The one-line descriptions of commands in the languages that kubectl speaks.
//! Used by `command::help_text`; one file per language in `languages`, a line `English = translation` each.
//! What a file does not have stays English, and so does everything but descriptions.

/// Locales as kubectl names them, and their words.
const LANGUAGES: [(&str, &str); 8] = [
    ("de_DE", include_str!("languages/de_DE.txt")),
    ("fr_FR", include_str!("languages/fr_FR.txt")),
    ("it_IT", include_str!("languages/it_IT.txt")),
    ("ja_JP", include_str!("languages/ja_JP.txt")),
    ("ko_KR", include_str!("languages/ko_KR.txt")),
    ("pt_BR", include_str!("languages/pt_BR.txt")),
    ("zh_CN", include_str!("languages/zh_CN.txt")),
    ("zh_TW", include_str!("languages/zh_TW.txt")),
];

/// The words of one language.
#[derive(Debug, Clone, Copy, Default)]
pub struct Translation {
    lines: &'static str,
}

impl Translation {
    /// What `LC_ALL`, `LC_MESSAGES` and `LANG` ask for, the first that is set. Without an encoding it is no locale to kubectl.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = ["LC_ALL", "LC_MESSAGES", "LANG"].iter().filter_map(|name| variable(name)).find(|v| !v.is_empty());
        let locale = set.as_deref().and_then(|value| value.split_once('.')).map_or("", |(locale, _)| locale);
        let lines = LANGUAGES.iter().find(|(name, _)| *name == locale).map_or("", |(_, lines)| lines);
        Self { lines }
    }

    /// Of this process's environment.
    pub fn of_environment() -> Self {
        Self::of(|name| std::env::var(name).ok())
    }

    pub fn text(&self, english: &'static str) -> &'static str {
        let mut pairs = self.lines.lines().filter_map(|line| line.split_once(" = "));
        pairs.find(|(from, _)| *from == english).map_or(english, |(_, to)| to)
    }

    /// With the full stop of its script.
    pub fn sentence(&self, english: &'static str) -> String {
        let text = self.text(english);
        let ideographic = |c: char| ('\u{3040}'..='\u{9fff}').contains(&c);
        format!("{text}{}", if text.ends_with(ideographic) { '。' } else { '.' })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_chooses_the_language() {
        let check = |set: &[(&str, &str)], english: &'static str, wanted: &str| {
            let words = Translation::of(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string()));
            assert_eq!(words.sentence(english), wanted, "{set:?}");
        };
        let (files, node) = ("Modify kubeconfig files", "Mark node as schedulable");
        check(&[], files, "Modify kubeconfig files.");
        check(&[("LANG", "de_DE.UTF8")], files, "Verändere kubeconfig Dateien.");
        check(&[("LANG", "de_DE.UTF8"), ("LC_ALL", "fr_FR.UTF-8")], files, "Modifier des fichiers kubeconfig.");
        check(&[("LANG", "de_DE.UTF8"), ("LC_ALL", "")], node, "Markiere Knoten als schedulable.");
        check(&[("LC_MESSAGES", "zh_CN.UTF-8")], node, "标记节点为可调度。");
        check(&[("LANG", "zh_TW.UTF-8")], node, "Mark node as schedulable.");
        check(&[("LANG", "de_DE")], files, "Modify kubeconfig files.");
        check(&[("LANG", "sv_SE.UTF-8")], files, "Modify kubeconfig files.");
    }

    /// A description that changes must change in every language, or it is English again.
    #[test]
    fn every_line_translates_a_description() {
        let mut described = vec![crate::verbs::ROOT.about];
        described.extend(crate::verbs::ROOT.commands.iter().map(|command| command.about));
        for (name, lines) in LANGUAGES {
            for line in lines.lines() {
                let (english, translated) = line.split_once(" = ").expect("a pair");
                assert!(described.contains(&english), "{name}: {english}");
                assert!(!translated.trim().is_empty(), "{name}: {english}");
            }
        }
    }
}
