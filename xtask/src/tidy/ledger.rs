//! Findings against exceptions. What is excused but not found is itself a problem: limits only ever tighten.

use super::config::{Config, Exception};
use super::{Finding, source};

/// Sets findings off against the configured exceptions.
pub struct Ledger<'a> {
    config: &'a Config,
    used: Vec<bool>,
    used_unsafe: Vec<bool>,
}

impl<'a> Ledger<'a> {
    /// Nothing used yet.
    pub fn new(config: &'a Config) -> Ledger<'a> {
        Ledger {
            config,
            used: vec![false; config.exceptions.len()],
            used_unsafe: vec![false; config.unsafe_files.len()],
        }
    }

    /// The problems that remain, sorted, and the exceptions that nothing needs any more.
    pub fn problems(&mut self, mut findings: Vec<Finding>) -> Vec<String> {
        findings.sort();
        let mut problems: Vec<String> =
            findings.iter().filter(|finding| !self.excused(finding)).map(Finding::to_string).collect();
        for (exception, _) in self.config.exceptions.iter().zip(&self.used).filter(|(_, used)| !**used) {
            problems.push(format!(
                "tidy.toml: unused exception ({} {} {}): remove it",
                exception.rule, exception.path, exception.item
            ));
        }
        for (file, _) in self.config.unsafe_files.iter().zip(&self.used_unsafe).filter(|(_, used)| !**used) {
            problems.push(format!("tidy.toml: {} holds no unsafe: remove it from unsafe_files", file.path));
        }
        problems
    }

    fn excused(&mut self, finding: &Finding) -> bool {
        if finding.rule == source::UNSAFE {
            let place = self.config.unsafe_files.iter().position(|file| file.path == finding.path);
            if let Some(index) = place {
                self.used_unsafe[index] = true;
            }
            return place.is_some();
        }
        let place = self.config.exceptions.iter().position(|exception| covers(exception, finding));
        if let Some(index) = place {
            self.used[index] = true;
        }
        place.is_some()
    }
}

fn covers(exception: &Exception, finding: &Finding) -> bool {
    exception.rule == finding.rule
        && exception.path == finding.path
        && (exception.item.is_empty() || exception.item == finding.item)
        && finding.measure <= exception.limit
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}: {}", self.path, self.rule, self.text),
            line => write!(f, "{}:{line}: {}: {}", self.path, self.rule, self.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(rule: &'static str, measure: usize) -> Finding {
        Finding { rule, path: "a.rs".into(), line: 3, item: "f".into(), measure, text: "x".into() }
    }

    const EXCEPTION: &str = "[[exceptions]]\nrule = \"columns\"\npath = \"a.rs\"\nitem = \"f\"\n\
                             limit = 80\n\
                             reason = \"one table of cases\"\n";

    #[test]
    fn an_exception_excuses_up_to_its_own_limit() {
        let config = Config::sample(EXCEPTION);
        assert!(Ledger::new(&config).problems(vec![finding("columns", 80)]).is_empty());
        let problems = Ledger::new(&config).problems(vec![finding("columns", 81)]);
        assert_eq!(problems.len(), 2, "the finding, and the exception that did not cover it: {problems:?}");
    }

    #[test]
    fn an_unused_exception_is_a_problem() {
        let config = Config::sample(EXCEPTION);
        assert!(Ledger::new(&config).problems(Vec::new())[0].contains("unused exception"));
        assert_eq!(Ledger::new(&config).problems(vec![finding("file-lines", 80)]).len(), 2, "another rule");
    }

    #[test]
    fn an_unsafe_file_must_hold_unsafe() {
        let config = Config::sample("[[unsafe_files]]\npath = \"a.rs\"\nreason = \"the ring's door\"\n");
        assert!(Ledger::new(&config).problems(vec![finding(source::UNSAFE, 0)]).is_empty());
        assert!(Ledger::new(&config).problems(Vec::new())[0].contains("holds no unsafe"));
    }
}
