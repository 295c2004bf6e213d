//! Files of measured parameters: a section for each fabric, and subsections of libfabric's section for providers that
//! need other values of some keys. RDMA verbs inherit libfabric's values. A file holds only the differences from the
//! built-in file, even a single key.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::Path as File;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::device::{self, DeviceKeys};
use super::{KEYS, Parameters};
use crate::config::VerbsSettings;
use crate::error::{Error, Result};
use crate::files;
use crate::named::unknown;

/// Measured on the laptop on which this project was developed.
pub(crate) const BUILT_IN: &str = include_str!("../../hw-configs/laptop.toml");

/// The length of the longest file: a hundred times that of all keys of all providers.
const MOST_BYTES: u64 = 1 << 20;

const SHM: &str = "shm";
const OFI: &str = "ofi";
const VERBS: &str = "verbs";

/// The sections that can have keys.
const SECTIONS: &str = "[shm], [ofi], [ofi.PROVIDER] or [verbs]";

/// Providers of libfabric (1.17 to 2.6), and the layers over them. A full name has one or several of them, such as
/// `tcp;ofi_rxm`.
const PROVIDERS: [&str; 21] = [
    "bgq",
    "cxi",
    "efa",
    "gni",
    "lnx",
    "lpp",
    "net",
    "ofi_mrail",
    "ofi_rxd",
    "ofi_rxm",
    "opx",
    "psm2",
    "psm3",
    "shm",
    "sm2",
    "sockets",
    "tcp",
    "ucx",
    "udp",
    "usnic",
    "verbs",
];

/// The measured parameters of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HwConfig {
    fabrics: BTreeMap<String, Parameters>,
    verbs: VerbsSettings,
}

impl HwConfig {
    /// Loads a file; built-in values replace the ones that it lacks.
    ///
    /// # Errors
    /// [`Error::Config`] that names file, line or section, and key, and suggests the closest key.
    pub fn load(file: Option<&File>) -> Result<Self> {
        let name = file.map_or_else(|| "built in".into(), |file| file.display().to_string());
        let text = file.map_or_else(|| Ok(BUILT_IN.to_owned()), |file| files::text(file, MOST_BYTES));
        let parsed = text.map_err(|cause| cause.to_string()).and_then(|text| Self::parse(&text));
        parsed.map_err(|problem| Error::Config(format!("hw-config {name}: {problem}")))
    }

    pub(crate) fn parse(text: &str) -> std::result::Result<Self, String> {
        let (mut sections, given) = (sections(BUILT_IN)?, sections(text)?);
        if given.is_empty() {
            return Err(format!("there is no section; use {SECTIONS}"));
        }
        for (name, section) in given {
            let section = section.over(sections.get(&name));
            sections.insert(name, section);
        }
        let verbs = sections.get_mut(VERBS).map_or(Ok(VerbsSettings::default()), |section| {
            let settings = section.device_keys().read().and_then(DeviceKeys::settings);
            settings.map_err(|problem| format!("[{VERBS}]: {problem}"))
        })?;
        // A provider inherits the values of its fabric, except for its own, given or built in. The same holds for
        // `verbs`.
        let network = sections.get(OFI).cloned();
        let read = |(name, section): (String, Section<'_>)| {
            let base = network.as_ref().filter(|_| name != SHM);
            let checked = section.over(base).read().and_then(|read: Parameters| read.check().map(|()| read));
            let parameters = checked.map_err(|problem| format!("[{name}]: {problem}"))?;
            Ok((name, parameters))
        };
        let fabrics = sections.into_iter().map(read).collect::<std::result::Result<_, String>>()?;
        Ok(HwConfig { fabrics, verbs })
    }

    /// Returns the file's settings of RDMA devices.
    pub(crate) fn verbs(&self) -> &VerbsSettings {
        &self.verbs
    }

    /// Returns the parameters of a fabric, by its name; those of a libfabric provider, where it has a section.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no section for the fabric.
    pub fn of(&self, fabric: &str, provider: Option<&str>) -> Result<Parameters> {
        let special = provider.and_then(|provider| self.fabrics.get(&format!("{fabric}.{provider}")));
        let parameters = special.or_else(|| self.fabrics.get(fabric)).cloned();
        parameters.ok_or_else(|| Error::Config(format!("hw-config: there is no section [{fabric}]")))
    }
}

/// The keys and values of a section.
#[derive(Clone)]
struct Section<'t> {
    /// The text to which the positions of the values refer.
    text: &'t str,
    table: Spanned<DeTable<'t>>,
}

impl<'t> Section<'t> {
    /// Adds the values of another section for keys that this one lacks.
    fn over(mut self, base: Option<&Self>) -> Self {
        for (key, value) in base.into_iter().flat_map(|base| base.table.get_ref().iter()) {
            self.table.get_mut().entry(key.clone()).or_insert_with(|| value.clone());
        }
        self
    }

    /// Moves the keys of devices out of the section.
    fn device_keys(&mut self) -> Section<'t> {
        let mut taken = DeTable::new();
        for key in device::KEYS {
            taken.extend(self.table.get_mut().remove_entry(key));
        }
        Section { text: self.text, table: Spanned::new(self.table.span(), taken) }
    }

    fn read<T: DeserializeOwned>(self) -> std::result::Result<T, String> {
        T::deserialize(Deserializer::from(self.table)).map_err(|mut error| {
            error.set_input(Some(self.text));
            error.to_string()
        })
    }
}

/// Returns the sections of a text, by name. A key outside of all sections is an error.
fn sections(text: &str) -> std::result::Result<BTreeMap<String, Section<'_>>, String> {
    let document = DeTable::parse(text).map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    for (name, mut value) in document.into_inner() {
        let name = name.into_inner().into_owned();
        if is_key(&name) {
            return Err(format!("{name} is in no section; write it below {SECTIONS}"));
        }
        if ![SHM, OFI, VERBS].contains(&name.as_str()) {
            return Err(unknown("section", &name, &[SHM, OFI, VERBS]));
        }
        if name == OFI
            && let DeValue::Table(table) = value.get_mut()
        {
            found.extend(providers(table)?);
        }
        found.push((name, value));
    }
    found.into_iter().map(|(name, value)| Ok((name.clone(), section(text, &name, value)?))).collect()
}

/// Moves the sections of providers out of the section of their fabric.
fn providers<'t>(fabric: &mut DeTable<'t>) -> std::result::Result<Vec<(String, Spanned<DeValue<'t>>)>, String> {
    let tables = fabric.iter().filter(|(name, value)| value.get_ref().is_table() && !is_key(name.get_ref()));
    let names: Vec<_> = tables.map(|(name, _)| name.clone()).collect();
    for name in &names {
        if let Some(part) = name.get_ref().split(';').find(|part| !PROVIDERS.contains(part)) {
            return Err(format!("[{OFI}.{}]: {}", name.get_ref(), unknown("provider", part, &PROVIDERS)));
        }
    }
    let take = |name: Spanned<_>| fabric.remove(&name).map(|value| (format!("{OFI}.{}", name.get_ref()), value));
    Ok(names.into_iter().filter_map(take).collect())
}

fn section<'t>(text: &'t str, name: &str, value: Spanned<DeValue<'t>>) -> std::result::Result<Section<'t>, String> {
    let span = value.span();
    let DeValue::Table(table) = value.into_inner() else {
        return Err(format!("{name} is the name of a section, [{name}]"));
    };
    let known: Vec<&str> = match name {
        VERBS => KEYS.into_iter().chain(device::KEYS).collect(),
        _ => KEYS.to_vec(),
    };
    match table.keys().find(|key| !known.contains(&key.get_ref().as_ref())) {
        Some(key) if is_key(key.get_ref()) => Err(format!("[{name}]: {} is a key of [{VERBS}] only", key.get_ref())),
        Some(key) => Err(format!("[{name}]: {}", unknown("key", key.get_ref(), &known))),
        None => Ok(Section { text, table: Spanned::new(span, table) }),
    }
}

fn is_key(name: &str) -> bool {
    KEYS.contains(&name) || device::KEYS.contains(&name)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::rule::{Fire, MovementBy, Schedule};

    #[test]
    fn the_built_in_parameters_can_be_read() {
        let parameters = HwConfig::load(None).unwrap().of("shm", None).unwrap();
        assert_eq!(parameters.movement(Fire::ALL, 2, 8), MovementBy::Everyone);
        assert_eq!(parameters.movement(Fire::SOLO, 2, 8), MovementBy::Initiator);
        assert_eq!(parameters.movement(Fire::SOLO, 32, u64::MAX), MovementBy::Segments);
        let network = HwConfig::load(None).unwrap().of("ofi", None).unwrap();
        let path = |ranks, bytes| network.movement(Fire::ALL, ranks, bytes).to_string();
        assert_eq!([path(2, 8), path(2, 4 << 20), path(2, 1 << 30)], ["replicated", "scattered", "segmented"]);
        assert_eq!([path(4, 8), path(4, 1 << 20), path(4, 1 << 30)], ["gathered", "scattered", "segmented"]);
        assert_eq!([0, 1 << 20].map(|bytes| network.pull_after(bytes)), [1_000_000, 9_000_000]);
        assert_eq!(network.pull_after(usize::MAX), 3_600_000_000_000);
    }

    /// Returns the files of `hw-configs/` that are not built in, by name.
    fn files() -> Vec<(String, String)> {
        let folder = File::new(env!("CARGO_MANIFEST_DIR")).join("hw-configs");
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let read = |file: std::path::PathBuf| {
            // Loaded as a user's file is.
            HwConfig::load(Some(&file)).unwrap();
            (file.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(file).unwrap())
        };
        files.into_iter().map(read).filter(|(_, text)| text != BUILT_IN).collect()
    }

    #[test]
    fn every_file_can_be_read_and_holds_only_what_differs() {
        let built_in = HwConfig::load(None).unwrap();
        let files = files();
        assert_eq!(files.len(), 5);
        for (name, text) in &files {
            let whole = HwConfig::parse(text).unwrap();
            assert_ne!(whole, built_in, "{name}");
            let keys: Vec<_> = text.lines().filter(|line| is_key(line.split(' ').next().unwrap_or_default())).collect();
            assert!(!keys.is_empty(), "{name}");
            for line in keys {
                assert_ne!(HwConfig::parse(&text.replacen(line, "", 1)).as_ref(), Ok(&whole), "{name}: {line}");
            }
        }
    }

    /// Figures of other programs must not be presented as measurements of this one.
    #[test]
    fn every_value_of_another_network_is_marked_as_cited() {
        for (name, text) in files() {
            assert!(text.contains("Cited, not measured") && text.contains("https://"), "{name}");
            let lines: Vec<_> = text.lines().collect();
            for pair in lines.windows(2).filter(|pair| is_key(pair[1].split(' ').next().unwrap_or_default())) {
                assert!(pair[0].starts_with("# Cited: ") || pair[0].starts_with("# Follows: "), "{name}: {}", pair[1]);
            }
        }
    }

    /// A star for few bytes among 3 to 32 ranks, pairs above, and parts of large data from four ranks on.
    #[test]
    fn shapes_follow_from_ranks_and_bytes() {
        let config = HwConfig::parse(BUILT_IN).unwrap();
        let [network, sockets, verbs] = [("ofi", None), ("ofi", Some("sockets")), ("verbs", None)]
            .map(|(fabric, provider)| config.of(fabric, provider).unwrap());
        let (whole, parts) = (Schedule::Doubling, Schedule::Halving);
        for (ranks, bytes, expected) in [
            (2, 8, (whole, 2)),
            (2, 64 << 20, (whole, 2)),
            (3, 8, (whole, 1)),
            (3, 4 << 20, (whole, 2)),
            (8, 256 << 10, (whole, 1)),
            (8, (256 << 10) + 1, (parts, 2)),
            (32, 64 << 10, (whole, 1)),
            (32, 128 << 10, (whole, 2)),
            (32, (128 << 10) + 1, (parts, 2)),
            (33, 8, (whole, 2)),
        ] {
            assert_eq!(network.shape(bytes, ranks), expected, "{ranks} ranks, {bytes} bytes");
        }
        assert_eq!(verbs.shape(8, 4), (whole, 8));
        // Synchronous rounds are relayed in place of scattered ones among many ranks.
        let relays = |parameters: &Parameters, ranks, bytes| parameters.relays(Fire::ALL, (ranks, bytes), true);
        assert!(!relays(&network, 15, 1 << 20) && relays(&network, 16, 1 << 20));
        assert!(!relays(&network, 16, 64 << 10) && relays(&network, 16, (64 << 10) + 1));
        assert!(relays(&network, 32, 1 << 20) && !relays(&network, 32, (1 << 20) + 1));
        assert!(!relays(&sockets, 32, 1 << 20) && !relays(&verbs, 32, 1 << 20));
    }

    #[test]
    fn mistakes_are_named() {
        let change = |from: &str, to: &str| HwConfig::parse(&BUILT_IN.replace(from, to)).unwrap_err();
        assert!(change("eager_total", "eager_totl").contains("did you mean eager_total?"));
        assert!(change("[shm]", "[shn]").contains("did you mean shm?"));
        assert!(change("\"32K\"", "\"lots\"").contains("not a size"));
        assert!(change("\"32K\"", "\"13\"").contains("multiple of 8"));
        assert!(change("\"32K\"", "32").contains("invalid type"));
        assert!(change("\"8ms\"", "\"61s\"").contains("at most"));
        assert!(change("pull_after = \"1ms\"", "pull_after = \"0\"").contains("need a time to wait"));
        assert!(change("radix = 2", "radix = 1").contains("2 to 32; it is 1"));
        assert!(change("radix = 2", "radix = 33").contains("2 to 32; it is 33"));
        assert!(change("\"cut\"", "\"twig\"").contains("use one of auto, cut, tree"));
        assert!(change("\"caller\"", "\"auto\"").contains("cannot be auto"));
        assert!(change("\"caller\"", "\"provider\"").contains("cannot be provider"));
        assert!(change("\"50us\"", "\"5 days\"").contains("not a time"));
        assert!(change("\"100us\"", "\"1s\"").contains("more than 10ms"));
        assert!(change("[ofi.sockets]", "[shm.sockets]").contains("[shm]: unknown key sockets"));
        assert!(change("\"20us\"", "\"20 years\"").starts_with("[ofi.sockets]: TOML parse error at line"));
        assert!(change("[shm]", "[network]").contains("unknown section network; use one of shm, ofi, verbs"));
        assert!(HwConfig::parse("ofi = 3").unwrap_err().contains("name of a section"));
        assert!(HwConfig::parse("spin = \"1us\"").unwrap_err().contains("spin is in no section"));
        let provider = |name: &str| HwConfig::parse(&format!("[ofi.\"{name}\"]\nspin = \"1us\"")).unwrap_err();
        assert!(provider("sokets").contains("[ofi.sokets]: unknown provider sokets; did you mean sockets?"));
        assert!(provider("tcp;ofi_rmx").contains("unknown provider ofi_rmx; did you mean ofi_rxm?"));
        assert!(provider("carrier-pigeon").contains("unknown provider carrier-pigeon; use one of bgq, cxi, "));
        let both = HwConfig::parse("[ofi]\nsegment = \"512K\"").unwrap_err();
        assert!(both.contains("piece must be a multiple of segment, and not 0; they are 262144 and 524288"), "{both}");
        assert!(
            HwConfig::parse("[ofi.tcp]\nspni = \"1us\"")
                .unwrap_err()
                .contains("[ofi.tcp]: unknown key spni; did you mean spin?")
        );
        assert!(HwConfig::parse("[ofi.spin]\na = 1").unwrap_err().contains("[ofi]: TOML"));
        assert!(HwConfig::parse("").unwrap_err().contains("shm"));
        assert!(HwConfig::load(Some(File::new("/no/such/file"))).unwrap_err().to_string().contains("/no/such/file"));
    }

    #[test]
    fn a_single_key_changes_nothing_else() {
        let built_in = HwConfig::load(None).unwrap();
        let mut section = "";
        let mut keys = 0;
        for line in BUILT_IN.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if line.starts_with('[') {
                section = line;
                continue;
            }
            keys += 1;
            assert_eq!(HwConfig::parse(&format!("{section}\n{line}")).as_ref(), Ok(&built_in), "{section} {line}");
        }
        assert!(keys > 20);
        for (section, from, to) in [
            ("[shm]", "eager_total = \"64K\"", "eager_total = \"0\""),
            ("[ofi]", "gather_total = \"1M\"", "gather_total = \"0\""),
            ("[ofi.sockets]", "spin = \"20us\"", "spin = \"5us\""),
        ] {
            let edited = HwConfig::parse(&BUILT_IN.replacen(from, to, 1)).unwrap();
            assert_ne!(edited, built_in);
            assert_eq!(HwConfig::parse(&format!("{section}\n{to}")), Ok(edited), "{section}");
        }
    }

    #[test]
    fn the_section_of_verbs_has_settings_of_devices() {
        assert_eq!(HwConfig::load(None).unwrap().verbs(), &VerbsSettings::default());
        let text = "[verbs]\nmtu = \"2K\"\nretries = 3\nlink_timeout = \"9s\"\ntraffic_class = 104\nspin = \"3us\"";
        let config = HwConfig::parse(text).unwrap();
        let (mtu, retries, link_timeout) = (Some(2048), Some(3), Some(Duration::from_secs(9)));
        let given = VerbsSettings { mtu, retries, link_timeout, traffic_class: Some(104), ..VerbsSettings::default() };
        assert_eq!(config.verbs(), &given);
        assert_eq!(config.of("verbs", None).unwrap().spin(false).as_micros(), 3);
        let chosen = VerbsSettings { traffic_class: Some(8), device: Some("mlx5_0".to_owned()), ..Default::default() };
        assert_eq!(chosen.or(&given), VerbsSettings { device: chosen.device.clone(), traffic_class: Some(8), ..given });
        for (line, named) in [
            ("mtu = \"3K\"", "mtu: use 256, 512, 1K, 2K or 4K"),
            ("retries = 7", "retries: use a number from 0 to 6"),
            ("retries = 300", "invalid value"),
            ("receiver_wait = \"1s\"", "receiver_wait: use a time"),
            ("link_timeout = \"0\"", "link_timeout: use a time"),
            ("service_level = 16", "service_level: use a number"),
            ("send_depth = 8", "send_depth: use a number"),
            ("receive_depth = 0", "receive_depth: use a number"),
            ("mtv = 3", "did you mean mtu?"),
        ] {
            let error = HwConfig::parse(&format!("[verbs]\n{line}")).unwrap_err();
            assert!(error.contains("[verbs]: ") && error.contains(named), "{line}: {error}");
        }
        let error = HwConfig::parse("[ofi]\nmtu = \"1K\"").unwrap_err();
        assert!(error.contains("[ofi]: mtu is a key of [verbs] only"), "{error}");
    }

    #[test]
    fn a_provider_inherits_the_values_of_its_fabric() {
        let spins = |config: &HwConfig, provider| {
            let parameters = config.of("ofi", provider).unwrap();
            (parameters.spin(false).as_micros(), parameters.spin(true).as_micros())
        };
        let built_in = HwConfig::load(None).unwrap();
        assert_eq!(spins(&built_in, Some("tcp;ofi_rxm")), (1000, 500));
        assert_eq!(spins(&built_in, Some("sockets")), (20, 500));
        let given = HwConfig::parse("[ofi.sockets]\nsegment = \"64K\"").unwrap().of("ofi", Some("sockets")).unwrap();
        assert_eq!((given.segment(), given.spin(false).as_micros()), (64 << 10, 20));
        // A section of a file replaces only the keys that it has.
        let given = HwConfig::parse("[ofi.\"tcp;ofi_rxm\"]\nspin = \"3us\"").unwrap();
        assert_eq!(spins(&given, Some("tcp;ofi_rxm")), (3, 500));
        assert_eq!(spins(&given, Some("sockets")), (20, 500));
        assert_eq!(spins(&given, None), (1000, 500));
        let given = HwConfig::parse(&BUILT_IN.replace("\"500us\"", "\"400us\"")).unwrap();
        assert_eq!(spins(&given, Some("sockets")), (20, 400));
        let given = HwConfig::parse("[ofi]\nspin = \"3us\"\nspin_oversubscribed = \"4us\"").unwrap();
        assert_eq!(spins(&given, Some("tcp;ofi_rxm")), (3, 4));
        assert_eq!(spins(&given, Some("sockets")), (20, 4), "a provider's built-in value stays");
        assert_eq!(given.of("shm", None).unwrap(), built_in.of("shm", Some("sockets")).unwrap());
    }
}
