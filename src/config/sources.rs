//! Where settings come from, and which one wins.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Table, Value};

use super::error::{ConfigError, OverlayError};
use super::raw::Raw;
use super::{Config, NameServerConfig};

/// A setting from outside the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// What to call it in an error: the variable or the flag.
    pub origin: String,
    pub section: String,
    pub key: String,
    pub value: String,
}

/// The file and what is laid over it, in that order: the last overlay wins.
#[derive(Clone, Debug)]
pub struct Sources {
    pub file: PathBuf,
    pub overlays: Vec<Overlay>,
}

const PREFIX: &str = "RAFTMQ_";
/// Two underscores, because orchestrators put variables with one of their own under a service's
/// name (`RAFTMQ_SERVICE_HOST`), and those must not be taken for settings.
const SEPARATOR: &str = "__";

impl Overlay {
    /// `RAFTMQ_SECTION__KEY`; any other variable is none of ours and gives `None`.
    pub fn from_variable(name: &str, value: &str) -> Option<Self> {
        let (section, key) = name.strip_prefix(PREFIX)?.split_once(SEPARATOR)?;
        Some(Self {
            origin: format!("the environment variable {name}"),
            section: section.to_lowercase(),
            key: key.to_lowercase(),
            value: value.to_owned(),
        })
    }

    /// `SECTION.KEY=VALUE`, as the flag `--set` takes it.
    pub fn from_flag(text: &str) -> Result<Self, OverlayError> {
        let origin = format!("the flag --set {text}");
        let example = "--set listen.grpc=0.0.0.0:8081";
        let parts = text.split_once('=').and_then(|(name, value)| {
            let (section, key) = name.trim().split_once('.')?;
            Some((section.to_owned(), key.to_owned(), value.trim().to_owned()))
        });
        match parts {
            Some((section, key, value)) => Ok(Self { origin, section, key, value }),
            None => Err(OverlayError::Name { origin, example }),
        }
    }

    fn lay_over(&self, table: &mut Table) -> Result<Raw, OverlayError> {
        let error = |why: String| OverlayError::Value {
            origin: self.origin.clone(),
            section: self.section.clone(),
            key: self.key.clone(),
            value: self.value.clone(),
            why,
        };
        let section = table
            .entry(self.section.clone())
            .or_insert_with(|| Value::Table(Table::new()))
            .as_table_mut()
            .ok_or_else(|| error("only the file can set this section".to_owned()))?;
        section.insert(self.key.clone(), scalar(&self.value));
        Raw::deserialize(Value::Table(table.clone()))
            .map_err(|source| error(source.message().to_owned()))
    }
}

/// `8` and `true` are what they look like, anything else is text; quotes force text.
fn scalar(text: &str) -> Value {
    let quoted = text.len() >= 2 && text.starts_with('"') && text.ends_with('"');
    if quoted {
        return Value::String(text[1..text.len() - 1].to_owned());
    }
    let number = || text.parse().ok().map(Value::Integer);
    let truth = || text.parse().ok().map(Value::Boolean);
    number().or_else(truth).unwrap_or_else(|| Value::String(text.to_owned()))
}

impl Sources {
    /// The file, then the variables of this process, then `flags`.
    pub fn gather(file: &Path, flags: &[String]) -> Result<Self, OverlayError> {
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Overlay::from_variable(name.to_str()?, value.to_str()?));
        let mut overlays: Vec<Overlay> = variables.collect();
        // The environment has no order of its own; errors should not depend on it.
        overlays.sort_by(|one, other| one.origin.cmp(&other.origin));
        for flag in flags {
            overlays.push(Overlay::from_flag(flag)?);
        }
        Ok(Self { file: file.to_owned(), overlays })
    }

    pub fn load(&self) -> Result<Config, ConfigError> {
        self.parse(&self.read()?)
    }

    /// The settings of a name server that runs alone. It may do without a file.
    pub fn load_name_server(&self) -> Result<NameServerConfig, ConfigError> {
        let text = if self.file.as_os_str().is_empty() { String::new() } else { self.read()? };
        Ok(NameServerConfig::try_from(self.raw(&text)?)?)
    }

    fn read(&self) -> Result<String, ConfigError> {
        let path = &self.file;
        std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.clone(), source })
    }

    /// As [`Sources::load`], with the content of the file at hand.
    pub fn parse(&self, text: &str) -> Result<Config, ConfigError> {
        Ok(Config::try_from(self.raw(text)?)?)
    }

    fn raw(&self, text: &str) -> Result<Raw, ConfigError> {
        let not_understood =
            |source| ConfigError::File { path: self.file.clone(), source: Box::new(source) };
        // Read as `Raw` at once, because only this way an error knows line and column.
        let mut raw: Raw = toml::from_str(text).map_err(not_understood)?;
        let mut table: Table = toml::from_str(text).map_err(not_understood)?;
        for overlay in &self.overlays {
            raw = overlay.lay_over(&mut table)?;
        }
        Ok(raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(overlays: Vec<Overlay>) -> Sources {
        Sources { file: PathBuf::from("raftmq.toml"), overlays }
    }

    const FILE: &str = "[node]\nid = 1\ndata = \"d\"\n";

    #[test]
    fn the_flag_wins_over_the_variable_over_the_file() {
        let variable = Overlay::from_variable("RAFTMQ_NODE__ID", "2").unwrap();
        let flag = Overlay::from_flag("node.id=3").unwrap();
        let id = |overlays| sources(overlays).parse(FILE).unwrap().node.get();
        assert_eq!(id(vec![]), 1);
        assert_eq!(id(vec![variable.clone()]), 2);
        assert_eq!(id(vec![variable, flag]), 3);
    }

    #[test]
    fn a_name_server_reads_ports_and_certificates_and_refuses_the_rest() {
        let with = |flags: &[&str]| {
            let overlays = flags.iter().map(|flag| Overlay::from_flag(flag).unwrap()).collect();
            Sources { file: PathBuf::new(), overlays }.load_name_server()
        };
        assert_eq!(with(&["listen.grpc=127.0.0.1:7000"]).unwrap().listen.grpc.port(), 7000);
        for flag in ["node.id=1", "log.segment_bytes=64MiB", "broker.groups=a"] {
            let section = flag.split('.').next().unwrap();
            let error = with(&[flag]).unwrap_err().to_string();
            assert!(error.contains(&format!("[{section}] is for brokers")), "{error}");
        }
    }

    #[test]
    fn an_overlay_may_open_a_section_and_quote_a_number() {
        let admin = Overlay::from_flag("admin.from_anywhere=true").unwrap();
        let data = Overlay::from_flag("node.data=\"7\"").unwrap();
        let config = sources(vec![admin, data]).parse(FILE).unwrap();
        assert!(config.admin_from_anywhere);
        assert_eq!(config.data, PathBuf::from("7"));
    }

    #[test]
    fn unknown_keys_are_refused_wherever_they_stand() {
        let in_file = sources(vec![]).parse("[node]\nid = 1\nidd = 2\n").unwrap_err().to_string();
        assert!(in_file.contains("idd") && in_file.contains("line 3"), "{in_file}");
        let overlay = Overlay::from_variable("RAFTMQ_NODE__IDD", "2").unwrap();
        let in_variable = sources(vec![overlay]).parse(FILE).unwrap_err().to_string();
        assert!(in_variable.contains("RAFTMQ_NODE__IDD"), "{in_variable}");
        let overlay = Overlay::from_flag("members.id=2").unwrap();
        assert!(sources(vec![overlay]).parse(FILE).is_err());
    }

    #[test]
    fn an_orchestrators_variables_are_no_settings() {
        assert_eq!(Overlay::from_variable("RAFTMQ_SERVICE_HOST", "10.0.0.1"), None);
        assert_eq!(Overlay::from_variable("PATH", "/bin"), None);
        assert!(Overlay::from_flag("listen=1").is_err());
    }
}
