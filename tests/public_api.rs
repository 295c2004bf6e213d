//! What a program that depends on this crate can use: the promised names, nothing below them whatever features it turns
//! on, and nothing that breaks memory without `unsafe`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../ffi/tests/skipped/mod.rs"]
mod skipped;

#[path = "common/tier.rs"]
mod tier;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use skipped::{Need, skipped};
use tier::is_deep;

/// A program that uses every promised name.
const PROMISED: &str = r#"
use std::time::Duration;

use earlybird::{
    Absent, Allreduce, AllreduceBuilder, BucketOutcome, BucketOutcomes, BucketedAllreduce, Buckets, BucketsBuilder, Checkpoint, Config, Copies, Cut, Deadline, Dtype, Element, Entry, Error, ErrorKind, Executor, FabricChoice,
    Fire, Grace, Group, Item, Mover, OfiSettings, Outcome, Outcomes, Part, Patience, Preset, RankSet, Ranks, Reached, Reduce, Result, RuleError,
    Scale, Stats, SymmetricMemory, Traffic, UnknownName, VerbsSettings, When, World, bf16, f16, interrupt_when,
};

fn begin<T: Element>(world: &World, fire: Fire) -> AllreduceBuilder<'_, T> {
    let sum = world.allreduce(&[1, 2]).fire(fire).grace(Grace::Auto).absent(Absent::Carry).reduce(Reduce::Sum);
    sum.scale(Scale::Sum).depth(2).mover(Mover::Auto).executor(Executor::Auto)
}

fn step<T: Element>(sum: &mut Allreduce<T>, until: Deadline) -> Result<Stats> {
    sum.contribution()?;
    sum.arrive()?;
    let outcomes: Outcomes<'_, T> = sum.wait(until)?;
    for outcome in outcomes {
        let outcome: Outcome<'_, T> = outcome;
        let cut: &Cut = outcome.cut();
        let fresh: RankSet = cut.fresh();
        let entry: Entry = cut.entries().next().unwrap();
        println!("{fresh:?} {} {:?}", entry.part == Part::Fresh, outcome.data());
    }
    Ok(sum.stats())
}

fn sent(world: &World, before: Traffic) -> (Traffic, u64) {
    let hosts: Vec<Vec<u32>> = world.hosts();
    assert_eq!(hosts.concat().len(), world.size() as usize);
    let (sent, reached): (Traffic, Reached) = (world.traffic() - before, world.reached());
    (sent, sent.messages + sent.control + sent.bytes + sent.atomics + sent.reads + u64::from(reached.peers))
}

fn average(world: &World, model: &mut [f32], until: Deadline) -> Result<()> {
    let models = world.allreduce(&[model.len()]).preset(Preset::WagmaPublished).group(Group::Butterfly(2));
    let initial = model.to_vec();
    let mut models = models.memory(&initial).build()?;
    models.contribution()?.copy_from_slice(model);
    models.arrive()?;
    let outcomes = models.wait(until)?;
    for outcome in outcomes.iter() {
        println!("{} {:?}", outcome.group().len(), outcome.own().next());
    }
    outcomes.newest().merge_into(model)?;
    drop(outcomes);
    models.finish(until)
}

fn save(world: &World, model: &[f32], until: Deadline) -> Result<Vec<u8>> {
    let mut sum = world.allreduce(&[model.len()]).own_memory(model).build()?;
    sum.arrive()?;
    let outcomes = sum.wait(until)?;
    let newest = outcomes.newest();
    let mut bytes = Vec::new();
    if newest.can_checkpoint() {
        newest.checkpoint()?.write_to(&mut bytes)?;
    }
    drop((newest, outcomes));
    sum.finish(until)?;
    Ok(bytes)
}

fn go_on(world: &World, bytes: &[u8], until: Deadline) -> Result<()> {
    let checkpoint = Checkpoint::read_from(bytes)?;
    let (rank, ranks, round): (u32, u32, u64) = (checkpoint.rank(), checkpoint.ranks(), checkpoint.round());
    let model: Option<Vec<f32>> = checkpoint.model();
    println!("{rank} {ranks} {round} {model:?}");
    let mut sum: Allreduce<f32> = world.allreduce(&[3]).restore(&checkpoint).build()?;
    sum.finish(until)
}

fn merge(world: &World, until: Deadline) -> Result<()> {
    let builder: BucketsBuilder<'_, f32> = world.allreduce(&[3, 1]).buckets(Buckets::Measured);
    let mut sum: BucketedAllreduce<f32> = builder.build()?;
    sum.begin()?;
    for tensor in 0..2 {
        sum.tensor(tensor)?.fill(1.0);
        sum.filled(tensor)?;
    }
    let outcomes: BucketOutcomes<'_, f32> = sum.wait(until)?;
    println!("{:?}", outcomes.tensor(1));
    for outcome in outcomes.iter() {
        let outcome: BucketOutcome<'_, f32> = outcome;
        println!("{} {:?} {:?}", outcome.round(), outcome.cut(), outcome.tensor(0));
    }
    drop(outcomes);
    sum.finish(until)
}

fn in_place(world: &World, until: Deadline) -> Result<Copies> {
    let mut memory: SymmetricMemory = world.symmetric_memory(4096, until)?;
    memory.as_mut_slice::<f32>()?.fill(1.0);
    memory.all_reduce::<f32>(0..1024, Reduce::Sum, until)?;
    memory.all_reduce_bytes(Dtype::F32, 0..4096, Reduce::Max, until)?;
    println!("{:?}", memory.as_slice::<f32>()?);
    interrupt_when(|| false);
    Ok(world.copies())
}

/// Any type of elements, and outcomes without a borrow.
fn sum_bytes(world: &World, dtype: Dtype, until: Deadline) -> Result<Vec<u8>> {
    fn bytes<T: Item>(data: &[T]) -> usize {
        size_of_val(data)
    }
    let mut sum: Allreduce<u8> = world.allreduce_bytes(dtype, &[3]).executor(Executor::Thread).build()?;
    let descriptor = sum.completion()?;
    println!("{descriptor:?} {:?} {}", sum.dtype(), world.is_own());
    println!("{}", bytes(sum.contribution()?));
    sum.arrive()?;
    let rounds = sum.wait(until)?.keep();
    let newest = sum.kept(*rounds.end()).map_or_else(Vec::new, |outcome| outcome.data().to_vec());
    sum.release();
    sum.finish(until)?;
    Ok(newest)
}

fn explain(error: &Error) -> String {
    println!("{} {:?} {:?}", error.kind() == ErrorKind::Timeout, error.rank(), error.peer());
    match error {
        Error::Timeout { missing, .. } => {
            let missing: &Ranks = missing;
            missing.to_string()
        }
        Error::Rule(rule) => {
            let rule: &RuleError = rule;
            rule.to_string()
        }
        other => other.to_string(),
    }
}

fn main() -> Result<()> {
    let patience = Patience::default();
    let ofi = OfiSettings { provider: None, patience, ..OfiSettings::default() };
    let verbs = VerbsSettings { device: None, patience, ..VerbsSettings::default() };
    let config = Config { fabric: FabricChoice::Shm, ofi, verbs, record: None, replay: None, ..Config::from_env()? };
    let unknown: std::result::Result<Mover, UnknownName> = "twig".parse();
    println!("{unknown:?} {:?} {}", Dtype::F32, Fire::ALL.when() == When::All);
    let until = Duration::from_secs(1);
    for world in World::in_this_process(1, &config)? {
        let mut one = begin::<f16>(&world, Fire::SOLO).build()?;
        let mut other = begin::<bf16>(&world, Fire::ALL).build()?;
        for stats in [step(&mut one, until.into()), step(&mut other, until.into())] {
            println!("{}", stats.map_or_else(|error| explain(&error), |stats: Stats| stats.fresh.to_string()));
        }
        one.finish(until)?;
        other.finish(until)?;
        average(&world, &mut [0.0; 4], until.into())?;
        let saved = save(&world, &[0.0; 3], until.into())?;
        go_on(&world, &saved, until.into())?;
        merge(&world, until.into())?;
        println!("{:?}", in_place(&world, until.into())?);
    }
    Ok(())
}
"#;

/// Names of this repository: elsewhere a compiler reports them as private or missing.
const INTERNALS: [&str; 22] = [
    "use earlybird::cli::run;",
    "use earlybird::internals::fabric::Fabric;",
    "use earlybird::bootstrap::StoreAddress;",
    "use earlybird::collective::Allreduce;",
    "use earlybird::config::VARIABLES;",
    "use earlybird::units::Bytes;",
    "use earlybird::fabric::Endpoint;",
    "use earlybird::fabric::Fabric;",
    "use earlybird::fabric::RawAccess;",
    "use earlybird::fabric::Window;",
    "use earlybird::offload::deferred_work::DeferredProgram;",
    "use earlybird::fabric::shm::ShmFabric;",
    "use earlybird::fabric::sim::SimFabric;",
    "use earlybird::fault::Fault;",
    "use earlybird::model::Parameters;",
    "use earlybird::reduce::Dtype;",
    "use earlybird::simulation::Case;",
    "use earlybird::trigger::{Program, Start};",
    "pub fn from(world: &earlybird::World) { let _ = world.raw_fabric(); }",
    "pub fn from(world: &earlybird::World) { let _ = world.shares_its_core(); }",
    "pub fn of(sum: &earlybird::Allreduce<f32>) { let _ = sum.chosen(); }",
    "pub fn of(fire: earlybird::Fire) { let _ = earlybird::trigger::Start::of(fire, earlybird::Grace::Auto, 2); }",
];

/// The codes for missing and private: a module, a name in a path, a method.
const HIDDEN: [&str; 4] = ["E0432", "E0433", "E0599", "E0603"];

/// Ways to raw memory without the promise, and the compiler's error for each in this repository.
const WITHOUT_THE_PROMISE: [(&str, &str); 4] = [
    ("pub fn made() -> earlybird::fabric::RawAccess { earlybird::fabric::RawAccess::promise() }", "E0133"),
    ("pub fn taken() -> earlybird::fabric::RawAccess { earlybird::fabric::RawAccess::CRATE }", "E0624"),
    ("pub fn open(fabric: &dyn earlybird::fabric::Fabric) { let _ = fabric.open(); }", "E0061"),
    (
        "#[derive(Debug)] pub struct Spy; impl earlybird::fabric::Fabric for Spy {
            fn name(&self) -> &'static str { \"spy\" }
            fn rank(&self) -> u32 { 0 }
            fn ranks(&self) -> u32 { 1 }
            fn traffic(&self) -> earlybird::Traffic { unimplemented!() }
            fn reached(&self) -> earlybird::Reached { unimplemented!() }
            fn open(&self, _: earlybird::fabric::RawAccess) -> earlybird::Result<Box<dyn earlybird::fabric::Endpoint>> {
                unimplemented!()
            }
            fn exchange(&self, _: &'static str, _: &[u8], _: std::time::Instant) -> earlybird::Result<Vec<Vec<u8>>> {
                unimplemented!()
            }
            fn health(&self, _: &'static str) -> earlybird::Result<()> { Ok(()) }
            fn check_peers(&self, _: &'static str) -> earlybird::Result<()> { Ok(()) }
            fn neighbours(&self) -> Vec<u32> { vec![0] }
            fn has_left(&self, _: u32) -> bool { false }
            fn abort(&self, _: &str) {}
            fn leave(&self) {}
        }",
        "E0277",
    ),
];

/// A crate that depends on this one only; each of its programs is compiled separately.
struct Consumer(PathBuf);

/// The compiler's results for the programs of a consumer.
#[derive(Debug, Default)]
struct Verdict {
    compiled: BTreeSet<String>,
    /// The codes of its errors, by program.
    errors: BTreeMap<String, BTreeSet<String>>,
    /// cargo's own output.
    said: String,
}

impl Consumer {
    fn new() -> Consumer {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("public_api");
        // The compiled dependencies stay.
        let programs = folder.join("src/bin");
        let _ = fs::remove_dir_all(&programs);
        fs::create_dir_all(&programs).unwrap();
        let ours: toml::Table = fs::read_to_string(here.join("Cargo.toml")).unwrap().parse().unwrap();
        let features = ours["features"].as_table().unwrap().keys().map(|name| format!("'earlybird/{name}'"));
        let manifest = format!(
            "[package]\nname = \"consumer\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
             [features]\nall = [{}]\n\n[dependencies]\nearlybird = {{ path = '{}' }}\n",
            features.collect::<Vec<_>>().join(", "),
            here.display()
        );
        fs::write(folder.join("Cargo.toml"), manifest).unwrap();
        fs::copy(here.join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
        Consumer(folder)
    }

    fn program(&self, name: &str, text: &str) {
        fs::write(self.0.join("src/bin").join(format!("{name}.rs")), text).unwrap();
    }

    /// Compiles all programs, each as far as it goes, as in this repository or as elsewhere. `None` without cargo.
    fn check(&self, in_repository: bool, arguments: &[&str]) -> Option<Verdict> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .current_dir(&self.0)
            .args(["check", "--offline", "--keep-going", "--message-format", "json"])
            .args(arguments)
            .env("BUILT_IN_REPOSITORY", if in_repository { "yes" } else { "" })
            .env("CARGO_TARGET_DIR", self.0.join("target"))
            // A consumer does not have the flags of these tests.
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .output();
        let skip = |error: &std::io::Error| skipped(Need::Cargo, format_args!("cargo cannot be run: {error}"));
        let output = output.inspect_err(skip).ok()?;
        let mut verdict = Verdict { said: String::from_utf8_lossy(&output.stderr).into_owned(), ..Verdict::default() };
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
            let of = message["target"]["name"].as_str().unwrap_or_default().to_owned();
            if message["reason"] == "compiler-artifact" && message["target"]["kind"][0] == "bin" {
                verdict.compiled.insert(of);
            } else if message["reason"] == "compiler-message" && message["message"]["level"] == "error" {
                // The last error is a summary without a code.
                let code = message["message"]["code"]["code"].as_str().map(str::to_owned);
                verdict.errors.entry(of).or_default().extend(code);
            }
        }
        Some(verdict)
    }
}

impl Verdict {
    fn assert_compiled(&self, name: &str, text: &str) {
        assert!(self.compiled.contains(name), "{text}\ndoes not compile: {:?}\n{}", self.errors.get(name), self.said);
    }

    fn assert_refused(&self, name: &str, text: &str, codes: &[&str]) {
        assert!(!self.compiled.contains(name), "{text}\ncompiles");
        let found = self.errors.get(name).unwrap_or_else(|| panic!("{text}\nwas not compiled:\n{}", self.said));
        assert!(found.iter().any(|code| codes.contains(&&**code)), "{text}\nfails by {found:?}, not by {codes:?}");
    }
}

#[test]
fn a_consumer_reaches_the_promised_names_and_no_others() {
    if !is_deep() {
        // It compiles the crate and what it depends on three times more.
        return println!("TEST_DEEP=1 compiles programs that use the crate");
    }
    let consumer = Consumer::new();
    consumer.program("promised", PROMISED);
    let internals = || INTERNALS.iter().enumerate().map(|(index, text)| (format!("internal_{index}"), *text));
    internals().for_each(|(name, text)| consumer.program(&name, &format!("{text}\nfn main() {{}}\n")));
    let Some(verdict) = consumer.check(false, &["--bin", "promised"]) else { return };
    verdict.assert_compiled("promised", PROMISED);
    let Some(verdict) = consumer.check(false, &["--bins", "--all-features"]) else { return };
    verdict.assert_compiled("promised", PROMISED);
    internals().for_each(|(name, text)| verdict.assert_refused(&name, text, &HIDDEN));

    // They exist in this repository; and opening memory takes the promise.
    let without =
        || WITHOUT_THE_PROMISE.iter().enumerate().map(|(index, (text, code))| (format!("raw_{index}"), *text, *code));
    without().for_each(|(name, text, _)| consumer.program(&name, &format!("{text}\nfn main() {{}}\n")));
    let Some(verdict) = consumer.check(true, &["--bins"]) else { return };
    verdict.assert_compiled("promised", PROMISED);
    // The command and the module around the others have no names that are public even here.
    internals().skip(2).for_each(|(name, text)| verdict.assert_compiled(&name, text));
    // For that alone: a program of an older interface would be refused, too.
    without().for_each(|(name, text, code)| {
        verdict.assert_refused(&name, text, &[code]);
        assert_eq!(verdict.errors[&name], BTreeSet::from([code.to_owned()]), "{text}");
    });
}
