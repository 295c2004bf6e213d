//! Bytes from outside lead to a value or to an error that names the problem, and never to a panic.
//! `tests/corpora/` has inputs that were once of interest; random bytes come in addition.

use std::path::Path;

use proptest::prelude::*;

use crate::bootstrap::identity::Identity;
use crate::bootstrap::store::frame;
use crate::bootstrap::wire::{Heading, Hello, decode_pids, encode_pids};
use crate::collective::choices::compare;
use crate::collective::recording;
use crate::collective::regions::decode_keys;
use crate::config::Config;
use crate::error::Result;
use crate::fabric::net::{Message, PeerInfo};
use crate::model::{BUILT_IN, HwConfig};
use crate::offload::deferred_work::Introduction;
use crate::reduce::{Dtype, Reduce};
use crate::rule::{Absent, Executor, Fire, Grace, Mover, Scale};
use crate::seal::Secret;
use crate::simulation::{Case, Recording};
use crate::units::parse_size;

/// A config file; the error says what is wrong with it.
fn config_file(bytes: &[u8]) -> std::result::Result<(), String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    HwConfig::parse(text).map(drop)
}

/// An environment: lines of NAME=VALUE, with comments between them.
fn environment(bytes: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(bytes);
    let variables: Vec<(String, String)> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let lookup = |name: &str| variables.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone());
    Identity::from_lookup(lookup, 1)?.store_address()?;
    Config::from_vars(variables.into_iter()).map(drop)
}

/// Every message between ranks, each kind in turn.
fn wire(bytes: &[u8]) {
    if let Some(hello) = Hello::decode(bytes) {
        assert_eq!(hello.encode(), bytes[..20]);
    }
    if let Some(heading) = bytes.first_chunk().and_then(|first| Heading::decode(*first)) {
        assert_eq!(heading.encode()[4..], bytes[4..8]);
    }
    for ranks in [0, 1, 3, 1024] {
        if let Some(pids) = decode_pids(bytes, ranks) {
            assert_eq!(encode_pids(&pids.into_iter().flatten().collect::<Vec<_>>()), bytes);
        }
    }
    let _ = (decode_keys(bytes, false), decode_keys(bytes, true));
    if let Some((message, data)) = Message::decode(bytes) {
        assert!(data.len() == message.len as usize);
        let again = [&message.encode()[..], data].concat();
        assert_eq!(Message::decode(&again), Some((message, data)));
    }
    if let Some(info) = PeerInfo::decode(bytes) {
        assert_eq!(info.encode(), bytes);
    }
    if let Some(introduction) = Introduction::decode(bytes) {
        assert_eq!(introduction.encode(), bytes);
    }
    let secret = Secret::new(None, "job");
    let _ = bytes.first_chunk().and_then(frame::greeted);
    let _ = frame::Hello::decode(bytes, &[0; frame::NONCE], &secret);
    if let Some((heading, rest)) = bytes.split_first_chunk() {
        let _ = frame::verdict_len(heading, 3);
        assert_eq!(frame::judged(heading, rest, &[0; frame::NONCE], &secret), None, "no sender knows this secret");
    }
    if let Some(given) = frame::decode_world(bytes, 3) {
        assert_eq!(frame::encode_world(&given), bytes);
    }
    let mine = [("the length", "5".to_owned()), ("fire", "solo".to_owned())];
    let agreed = compare(0, "build", &mine, &[bytes.to_vec()]);
    if agreed.is_ok() {
        let text = String::from_utf8_lossy(bytes);
        assert_eq!(text.lines().take(2).collect::<Vec<_>>(), ["the length\t5", "fire\tsolo"]);
    }
}

/// Words on a command line.
fn words(text: &str) {
    let printed_as_read = |text: &str, again: Option<String>| {
        if let Some(again) = again {
            let twice = again.parse::<Fire>().map(|fire| fire.to_string());
            assert_eq!(twice.as_ref(), Ok(&again), "{text}");
        }
    };
    printed_as_read(text, text.parse::<Fire>().ok().map(|fire| fire.to_string()));
    let _ = (text.parse::<Grace>(), text.parse::<Absent>(), text.parse::<Scale>(), parse_size(text));
    let _ = (text.parse::<Mover>(), text.parse::<Executor>(), text.parse::<Dtype>(), text.parse::<Reduce>());
    if let Ok(case) = text.parse::<Case>() {
        assert_eq!(case.to_string().parse::<Case>().map(|again| again.to_string()), Ok(case.to_string()));
    }
}

fn corpus(kind: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpora").join(kind);
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    let built_in = (kind == "hw-config").then(|| ("built in".to_owned(), BUILT_IN.as_bytes().to_vec()));
    files
        .into_iter()
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .chain(built_in)
        .collect()
}

/// The text that the error must contain: the rest of the first line, after `# expect: `.
fn expected(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    Some(text.lines().next()?.strip_prefix("# expect: ")?.to_owned())
}

fn judge(name: &str, bytes: &[u8], result: std::result::Result<(), String>) {
    match (expected(bytes), result) {
        (None, Ok(())) => {}
        (Some(words), Err(error)) => assert!(error.contains(&words), "{name}: {error:?} lacks {words:?}"),
        (expected, result) => panic!("{name}: expected {expected:?}, got {result:?}"),
    }
}

#[test]
fn corpora_are_replayed() {
    for (name, bytes) in corpus("hw-config") {
        judge(&name, &bytes, config_file(&bytes));
    }
    for (name, bytes) in corpus("environment") {
        judge(&name, &bytes, environment(&bytes).map_err(|error| error.to_string()));
    }
    for (name, bytes) in corpus("recordings") {
        judge(&name, &bytes, recording::read_any(&bytes));
    }
    for (_, bytes) in corpus("wire") {
        wire(&bytes);
        // Every prefix, because messages may break off.
        (0..bytes.len()).for_each(|len| wire(&bytes[..len]));
    }
}

/// A file of a corpus with a few bytes changed, or random bytes.
fn mutated(kind: &str) -> impl Strategy<Value = Vec<u8>> + use<> {
    let seeds: Vec<Vec<u8>> = corpus(kind).into_iter().map(|(_, bytes)| bytes).collect();
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let changes = prop::collection::vec(change, 0..6);
    let near = (prop::sample::select(seeds), changes).prop_map(|(mut bytes, changes)| {
        for (at, value) in changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
        }
        bytes
    });
    prop_oneof![3 => near, 1 => prop::collection::vec(any::<u8>(), 0..64)]
}

/// A file of a corpus with a few of its numbers changed.
fn renumbered(kind: &str) -> impl Strategy<Value = Vec<u8>> + use<> {
    let texts: Vec<String> =
        corpus(kind).into_iter().map(|(_, bytes)| String::from_utf8_lossy(&bytes).into_owned()).collect();
    let numbers = [0, 1, 2, 3, 4, 9, 1 << 20, u64::from(u32::MAX), 1 << 40, u64::MAX];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(numbers.to_vec())), 1..4);
    (prop::sample::select(texts), changes).prop_map(|(mut text, changes)| {
        for (at, number) in changes {
            let is_first = |&(at, _): &(usize, char)| !text[..at].ends_with(|before: char| before.is_ascii_digit());
            let digits = text.char_indices().filter(|(_, character)| character.is_ascii_digit());
            let starts: Vec<usize> = digits.filter(is_first).map(|(at, _)| at).collect();
            let from = starts[at.index(starts.len())];
            let rest = text.split_off(from);
            text += &number.to_string();
            text += rest.trim_start_matches(|character: char| character.is_ascii_digit());
        }
        text.into_bytes()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_config_file_panics(bytes in mutated("hw-config")) {
        let _ = config_file(&bytes);
    }

    #[test]
    fn no_recorded_world_panics(bytes in mutated("worlds")) {
        if let Ok(text) = std::str::from_utf8(&bytes) {
            let _ = text.parse::<Recording>();
        }
    }

    #[test]
    fn no_recording_panics(bytes in prop_oneof![mutated("recordings"), renumbered("recordings")]) {
        let _ = recording::read_any(&bytes);
    }

    #[test]
    fn no_environment_panics(bytes in mutated("environment")) {
        let _ = environment(&bytes);
    }

    #[test]
    fn no_message_panics(bytes in mutated("wire")) {
        wire(&bytes);
    }

    #[test]
    fn no_word_panics(
        text in "(quorum|solo|all|majority|deadline|full|decay|drop|[0-9]{1,25}|ranks|steps|calm|[=,:+.0-9a-z\\PC]|(u|m|n)?s){0,8}"
    ) {
        words(&text);
    }
}
