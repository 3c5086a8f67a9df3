//! Text for a shell's command line.

use std::path::Path;

/// Characters that no shell treats specially, wherever they are in a word.
const PLAIN: &str = "_-./:=,@%+";

/// A word as a POSIX shell reads it back: unchanged if it has only plain characters, in single quotes otherwise.
#[must_use]
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || PLAIN.contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A path as an argument of a command: one that begins with `-` is not taken for an option. What is not UTF-8 is replaced.
#[must_use]
pub fn shell_path(path: &Path) -> String {
    let text = path.to_string_lossy();
    shell_word(&if text.starts_with('-') { format!("./{text}") } else { text.into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_each_path_back() {
        for path in [
            "site.toml",
            "/etc/my site/a.toml",
            "it's",
            "a\nb",
            "$(id) `id` \"x\" \\ *?[a]~#!&;|<>",
            "~x",
            "ü",
        ] {
            let script = format!("printf %s {}", shell_path(Path::new(path)));
            let done = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(done.stdout).unwrap(), path, "{script}");
        }
        assert_eq!(shell_path(Path::new("-x y")), "'./-x y'");
        assert_eq!((shell_word(""), shell_word("/a/b-1.toml")), ("''".to_owned(), "/a/b-1.toml".to_owned()));
    }
}
