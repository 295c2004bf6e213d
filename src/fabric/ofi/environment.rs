//! Variables of libfabric's providers: what this library wants of them, and who has set them.
//!
//! Descriptions (`fi_info`) cannot ask for any of it. `sockets` takes the size of its buffers from its variable alone;
//! `ofi_rxm` (1.17 to 2.6) makes what it asks of the provider below from its variables, whatever the attributes of its
//! own endpoints say. Providers read their variables when libfabric is first asked for something, so they are set
//! before it is loaded.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A variable that has another value than libfabric's, unless the user has set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderVariable {
    /// Its name.
    pub name: &'static str,
    /// What it is set to.
    pub value: &'static str,
    /// The provider that does better with it, or a layer of several.
    pub provider: &'static str,
    /// What holds when it is not set.
    pub default: &'static str,
    /// Why it is set.
    pub reason: &'static str,
}

const COUNT: usize = 3;

/// All of them.
pub const PROVIDER_VARIABLES: [ProviderVariable; COUNT] = [
    ProviderVariable {
        name: "FI_SOCKETS_MAX_BUF_SZ",
        value: "4194304",
        provider: "sockets",
        default: "the kernel's",
        reason: "with the kernel's buffers large messages get stuck now and then",
    },
    ProviderVariable {
        name: "FI_OFI_RXM_MSG_RX_SIZE",
        value: "32",
        provider: "ofi_rxm",
        default: "4096 if shared, else 128",
        reason: "it uses its receive buffers in turn, so fewer of them stay in a core's cache",
    },
    ProviderVariable {
        name: "FI_OFI_RXM_USE_SRX",
        value: "1",
        provider: "verbs;ofi_rxm",
        default: "1 over tcp, else 0",
        reason: "unless peers share receive buffers, libfabric 1.17 may crash when one of them ends",
    },
];

impl ProviderVariable {
    fn is_unset(&self) -> bool {
        std::env::var_os(self.name).is_none()
    }

    fn concerns(&self, provider: &str) -> bool {
        provider == self.provider || provider.split(';').any(|layer| layer == self.provider)
    }
}

/// Who has set a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetBy {
    /// The user: it was set when this process started.
    User,
    /// This library.
    Earlybird,
    /// It is not set: libfabric's default holds.
    Default,
}

impl SetBy {
    /// As it is printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SetBy::User => "you",
            SetBy::Earlybird => "earlybird",
            SetBy::Default => "libfabric's default",
        }
    }
}

/// A variable as it is in this process.
#[derive(Clone, Debug)]
pub struct InForce {
    /// Which.
    pub variable: ProviderVariable,
    /// Its value, or what holds without one.
    pub value: String,
    /// Who has set it.
    pub set_by: SetBy,
}

/// What holds in this process; variables that can be set are set by then.
#[must_use]
pub fn provider_variables() -> Vec<InForce> {
    let value = |variable: &ProviderVariable| {
        let value = std::env::var_os(variable.name);
        value.map_or_else(|| variable.default.to_owned(), |value| value.to_string_lossy().into_owned())
    };
    let each = PROVIDER_VARIABLES.into_iter().zip(prepare());
    each.map(|(variable, set_by)| InForce { variable, value: value(&variable), set_by }).collect()
}

/// What the user has not set, and its value. The launcher gives it to its ranks: one that has several threads before it
/// joins cannot set it itself.
pub fn variables_not_set() -> impl Iterator<Item = (&'static str, &'static str)> {
    PROVIDER_VARIABLES.iter().filter(|it| it.is_unset()).map(|it| (it.name, it.value))
}

/// Sets what the user has not set, the first time that it is called: before libfabric is loaded. Who has set what.
pub(super) fn prepare() -> [SetBy; COUNT] {
    static SET_BY: OnceLock<[SetBy; COUNT]> = OnceLock::new();
    *SET_BY.get_or_init(|| {
        let alone = has_one_thread();
        PROVIDER_VARIABLES.map(|variable| match variable.is_unset() {
            false => SetBy::User,
            true if alone => {
                // SAFETY: another thread must not read or write the environment meanwhile, by libc or otherwise. There
                // is none: the kernel has just listed this one alone, and nothing but this one can start another.
                unsafe { std::env::set_var(variable.name, variable.value) };
                SetBy::Earlybird
            }
            true => SetBy::Default,
        })
    })
}

/// Whether this thread is the only one of the process; not if that cannot be found out.
fn has_one_thread() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

/// Warns, once for each variable, of what would be better for a provider that is used and could not be set.
pub(super) fn warn(rank: u32, provider: &str) {
    static WARNED: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];
    if let Some(warning) = warning(provider, prepare(), &WARNED) {
        tracing::warn!(rank, "{warning}");
    }
}

fn warning(provider: &str, set_by: [SetBy; COUNT], warned: &[AtomicBool; COUNT]) -> Option<String> {
    let missing: Vec<String> = PROVIDER_VARIABLES
        .iter()
        .zip(set_by)
        .zip(warned)
        .filter(|((variable, set_by), _)| *set_by == SetBy::Default && variable.concerns(provider))
        .filter(|(_, warned)| !warned.swap(true, Ordering::Relaxed))
        .map(|((variable, _), _)| format!("{}={} ({})", variable.name, variable.value, variable.reason))
        .collect();
    (!missing.is_empty()).then(|| {
        format!(
            "set {} before this program starts: the provider {provider} is used, and earlybird sets variables only \
             while a process has one thread",
            missing.join(" and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned() -> [AtomicBool; COUNT] {
        [const { AtomicBool::new(false) }; COUNT]
    }

    #[test]
    fn one_warning_says_what_to_set_to_which_value() {
        let (unset, warned) = ([SetBy::Default; COUNT], warned());
        let verbs = warning("verbs;ofi_rxm", unset, &warned).unwrap();
        assert!(verbs.contains("FI_OFI_RXM_MSG_RX_SIZE=32 (") && verbs.contains("FI_OFI_RXM_USE_SRX=1 ("), "{verbs}");
        assert!(!verbs.contains("SOCKETS"), "{verbs}");
        assert_eq!(warning("verbs;ofi_rxm", unset, &warned), None, "it is said once");
        assert_eq!(warning("tcp;ofi_rxm", unset, &warned), None, "it is said once");
        let sockets = warning("sockets", unset, &warned).unwrap();
        assert!(sockets.contains("FI_SOCKETS_MAX_BUF_SZ=4194304 ("), "{sockets}");
    }

    #[test]
    fn nothing_is_said_of_what_does_not_matter_or_is_set() {
        assert_eq!(warning("udp;ofi_rxd", [SetBy::Default; COUNT], &warned()), None);
        for set_by in [SetBy::User, SetBy::Earlybird] {
            assert_eq!(warning("sockets", [set_by; COUNT], &warned()), None);
        }
        let tcp = warning("tcp;ofi_rxm", [SetBy::Default; COUNT], &warned()).unwrap();
        assert!(tcp.contains("MSG_RX_SIZE=32") && !tcp.contains("USE_SRX"), "tcp shares them anyway: {tcp}");
    }

    /// Tests run in threads of their own, beside the one that started them.
    #[test]
    fn variables_are_left_alone_beside_other_threads() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(!has_one_thread());
                for InForce { variable, set_by, .. } in provider_variables() {
                    let is_set = std::env::var_os(variable.name).is_some();
                    assert_eq!(set_by, if is_set { SetBy::User } else { SetBy::Default }, "{}", variable.name);
                }
            });
        });
    }
}
