//! Reports of findings as text and JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::finding::{Finding, Severity};

/// All findings, the worst first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    findings: Vec<Finding>,
}

impl Report {
    pub(crate) fn new(mut findings: Vec<Finding>) -> Self {
        findings.sort_by_key(|finding| finding.severity);
        Self { findings }
    }

    /// The findings.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The number of findings with a severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// The findings that prevent a start ([`Code::refuses_start`](crate::Code::refuses_start)).
    pub fn refusals(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|f| f.severity == Severity::Error && f.code.refuses_start())
    }

    /// The exit status: 0 without errors and warnings, 1 with errors, 3 with only warnings. 2 is the status
    /// for an invalid command line.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.findings.first().map(|finding| finding.severity) {
            Some(Severity::Error) => 1,
            Some(Severity::Warning) => 3,
            Some(Severity::Note) | None => 0,
        }
    }

    /// The report as text, with terminal colors if `coloured`.
    #[must_use]
    pub fn text(&self, coloured: bool) -> String {
        let mut out: String = self.findings.iter().map(|finding| text_of(finding, coloured) + "\n").collect();
        out.push_str(&self.last_line());
        out
    }

    /// The report for the journal: each line starts with the priority of its finding (sd-daemon(3)), the last
    /// line with the highest.
    #[must_use]
    pub fn journal_text(&self) -> String {
        let prefixed = |severity: Option<Severity>, text: &str| -> String {
            let priority = match severity {
                Some(Severity::Error) => 3,
                Some(Severity::Warning) => 4,
                Some(Severity::Note) | None => 6,
            };
            text.lines().map(|line| format!("<{priority}>{line}\n")).collect()
        };
        let findings = self.findings.iter();
        let mut out: String =
            findings.map(|finding| prefixed(Some(finding.severity), &text_of(finding, false))).collect();
        out.push_str(&prefixed(self.findings.first().map(|finding| finding.severity), &self.last_line()));
        out
    }

    fn last_line(&self) -> String {
        format!("ipoib-fwd: {}\n", self.summary())
    }

    fn summary(&self) -> String {
        let counted = |severity: Severity| {
            let count = self.count(severity);
            let plural = if count == 1 { "" } else { "s" };
            (count > 0).then(|| format!("{count} {}{plural}", severity.word()))
        };
        let parts: Vec<String> =
            [Severity::Error, Severity::Warning, Severity::Note].into_iter().filter_map(counted).collect();
        if parts.is_empty() { "no problems found".to_owned() } else { parts.join(", ") }
    }

    /// The report as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let findings = self.findings.iter().map(|finding| {
            let place = finding.at.as_ref().map(|at| {
                json!({
                    "file": at.file.to_string_lossy(),
                    "line": at.line,
                    "column": at.column,
                    "text": at.text,
                    "length": at.length,
                })
            });
            json!({
                "code": finding.code.word(),
                "severity": finding.severity.word(),
                "what": finding.what,
                "place": place,
                "help": finding.help,
            })
        });
        json!({
            "findings": findings.collect::<Vec<_>>(),
            "errors": self.count(Severity::Error),
            "warnings": self.count(Severity::Warning),
            "notes": self.count(Severity::Note),
        })
    }
}

/// Formats a finding. Writing to a string does not fail.
fn text_of(finding: &Finding, coloured: bool) -> String {
    let paint = |codes: &str, text: &str| match coloured {
        true => format!("\x1b[{codes}m{text}\x1b[0m"),
        false => text.to_owned(),
    };
    let mut out = String::new();
    let colour = match finding.severity {
        Severity::Error => "1;31",
        Severity::Warning => "1;33",
        Severity::Note => "1;32",
    };
    let head = format!("{}[{}]", finding.severity.word(), finding.code.word());
    let what = printable(&finding.what);
    let _ = writeln!(out, "{}{}", paint(colour, &head), paint("1", &format!(": {what}")));
    let number = finding.at.as_ref().map(|at| at.line.to_string()).unwrap_or_default();
    let margin = " ".repeat(number.len());
    let bar = paint("1;34", "|");
    if let Some(at) = &finding.at {
        let arrow = paint("1;34", "-->");
        let _ = writeln!(out, "{margin}{arrow} {}:{}:{}", at.file.display(), at.line, at.column);
        let _ = writeln!(out, "{margin} {bar}");
        let _ = writeln!(out, "{} {bar} {}", paint("1;34", &number), at.text);
        let marks = paint(colour, &"^".repeat(at.length));
        let _ = writeln!(out, "{margin} {bar} {}{marks}", " ".repeat(at.column - 1));
    }
    if !finding.help.is_empty() {
        let equals = paint("1;34", "=");
        let help = printable(&finding.help);
        let _ = writeln!(out, "{margin} {equals} {} {help}", paint("1", "help:"));
    }
    out
}

/// Replaces control characters.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Code;

    #[test]
    fn each_line_for_the_journal_has_its_findings_priority() {
        let finding = |severity, what: &str| Finding {
            severity,
            code: Code::ConfigInvalid,
            what: what.to_owned(),
            at: None,
            help: "do\n<0>something".to_owned(),
        };
        let report = Report::new(vec![
            finding(Severity::Note, "n"),
            finding(Severity::Warning, "w"),
            finding(Severity::Error, "e"),
        ]);
        let text = report.journal_text();
        let heads: Vec<_> = text.lines().map(|line| line.split_at(3).0).collect();
        assert_eq!(heads, ["<3>", "<3>", "<4>", "<4>", "<6>", "<6>", "<3>"], "{text}");
        // The text is the same as on a terminal.
        let plain: String = report.text(false).lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(text.lines().map(|line| &line[3..]).collect::<String>(), plain);
        assert_eq!(Report::new(Vec::new()).journal_text(), "<6>ipoib-fwd: no problems found\n");
    }
}
