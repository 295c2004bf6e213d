//! Ranks that do not come, come twice, or have other settings: an error on every rank.
#![cfg(earlybird_internals)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::tier::is_deep;
use common::{Job, Need, said};
use earlybird::{Config, World};

const DEADLINE: Duration = Duration::from_secs(3);

#[test]
#[ignore = "played by the processes that the other tests start"]
fn rank() {
    let Some(role) = common::role() else { return };
    let started = Instant::now();
    let config = Config::from_env().map(|config| match role.as_str() {
        // As a program that configures everything itself.
        "plain" => Config { secret: None, ..config },
        _ => config,
    });
    match config.and_then(|config| World::with(&Config { deadline: DEADLINE, ..config })) {
        Ok(world) => {
            println!("\nJOINED {} of {}", world.rank(), world.size());
            println!("\nFABRIC {}", world.fabric_name());
            println!("\nLAUNCHER {}", world.launcher());
            println!("\nHOSTS {:?}", world.hosts());
            let mut sum = world.allreduce::<u64>(&[1]).build().unwrap();
            if role == "mute" && world.rank() == 1 {
                // Leaves without a message.
                std::process::exit(0);
            }
            sum.contribution().unwrap()[0] = 1;
            match sum.arrive().and_then(|()| sum.wait(DEADLINE).map(|outcomes| outcomes.newest()[0])) {
                Ok(total) => println!("\nTOTAL {total}\nMESSAGES {}", world.traffic().messages),
                Err(error) => println!("\nERROR {error}"),
            }
            let _ = sum.finish(DEADLINE);
        }
        Err(error) => println!("\nERROR {error}"),
    }
    println!("\nTOOK {}", started.elapsed().as_millis());
}

/// How and where ranks meet.
#[derive(Clone, Debug)]
struct Way {
    store: String,
    variables: Vec<(&'static str, String)>,
    /// Ranks for which a variable differs.
    differs: Option<(u32, &'static str, String)>,
}

impl Way {
    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    fn but_for(mut self, rank: u32, name: &'static str, value: &str) -> Self {
        self.differs = Some((rank, name, value.to_owned()));
        self
    }

    fn is(&self, kind: &str) -> bool {
        self.store.starts_with(kind)
    }

    fn is_shm(&self) -> bool {
        self.variables.is_empty()
    }
}

/// Different for each call.
fn fresh() -> String {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
}

fn shm() -> Way {
    Way { store: format!("unix:bootstrap-{}", fresh()), variables: Vec::new(), differs: None }
}

fn over_libfabric(store: String) -> Way {
    let way = Way { store, variables: Vec::new(), differs: None };
    let apart = way.with(common::LEVELS_1.0, common::LEVELS_1.1);
    apart.with("EARLYBIRD_FABRIC", "ofi").with("EARLYBIRD_PROVIDER", common::PROVIDERS[0])
}

fn tcp() -> Way {
    // Free a moment ago. A process that takes it before rank 0 is not one of the strangers of these tests.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    over_libfabric(format!("tcp:127.0.0.1:{}", free.port()))
}

fn file() -> Way {
    over_libfabric(format!("file:{}", std::env::temp_dir().join(format!("earlybird-test-{}", fresh())).display()))
}

/// Shared memory, and over libfabric each kind of store; in the quick tier only stores for several machines.
fn ways() -> Vec<Way> {
    match common::libfabric() {
        None => vec![shm()],
        Some(_) if !is_deep() => vec![shm(), tcp()],
        Some(_) => vec![shm(), over_libfabric(shm().store), tcp(), file()],
    }
}

/// The stores for several machines, if they can be tested.
fn stores() -> Vec<Way> {
    ways().into_iter().filter(|way| !way.is("unix:")).collect()
}

/// Tries several cases at the same time: they wait most of it.
fn side_by_side<C: Send>(cases: Vec<C>, test: impl Fn(C) + Sync) {
    std::thread::scope(|scope| {
        let tests: Vec<_> = cases.into_iter().map(|case| scope.spawn(|| test(case))).collect();
        tests.into_iter().for_each(|test| test.join().unwrap());
    });
}

/// Starts one process for each pair of rank and world size, and returns their outputs.
fn start(way: &Way, ranks: &[(u32, u32)], role: &str) -> Vec<String> {
    let mut strangers = Vec::new();
    let children: Vec<_> = ranks
        .iter()
        .enumerate()
        .map(|(index, (rank, size))| {
            if role == "strangers" && index == 1 {
                // Until then rank 0 waits for rank 1, however busy the machine is.
                strangers = visit_as_strangers(way);
            }
            let differs = way.differs.iter().filter(|(differs, ..)| differs == rank);
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "rank", "--ignored", "--nocapture"])
                .env("TEST_ROLE", role)
                .env("EARLYBIRD_RANK", rank.to_string())
                .env("EARLYBIRD_WORLD_SIZE", size.to_string())
                .env("EARLYBIRD_STORE", &way.store)
                .envs(way.variables.iter().map(|(name, value)| (name, value)))
                .envs(differs.map(|(_, name, value)| (name, value)))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let texts = children
        .into_iter()
        .map(|child| String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap())
        .collect();
    drop(strangers);
    if let Some(folder) = way.store.strip_prefix("file:") {
        let left = std::fs::read_dir(folder).map_or(0, Iterator::count);
        assert_eq!(left, usize::from(role == "strangers"), "something was left behind in {folder}");
        let _ = std::fs::remove_dir_all(folder);
    }
    texts
}

/// One sends something else, one nothing; both stay for as long as the returned values live.
fn visit_as_strangers(way: &Way) -> Vec<Box<dyn Write>> {
    let (kind, place) = way.store.split_once(':').unwrap();
    let until = Instant::now() + DEADLINE;
    let store = if way.is_shm() { "" } else { "-store" };
    let mut visitors: Vec<Box<dyn Write>> = Vec::new();
    while visitors.len() < 2 && Instant::now() < until {
        match kind {
            "unix" => {
                let address = SocketAddr::from_abstract_name(format!("earlybird-{place}{store}")).unwrap();
                visitors.extend(UnixStream::connect_addr(&address).map(|stream| Box::new(stream) as Box<dyn Write>));
            }
            "tcp" => visitors.extend(TcpStream::connect(place).map(|stream| Box::new(stream) as Box<dyn Write>)),
            _ => {
                // Rank 0 may have created it by now.
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(place).unwrap();
                std::fs::write(format!("{place}/note-to-self"), "milk").unwrap();
                return visitors;
            }
        }
    }
    assert_eq!(visitors.len(), 2, "no rank listened at {} within {DEADLINE:?}", way.store);
    // Longer than a greeting, and not one.
    let _ = visitors[0].write_all(&b"GET / HTTP/1.1\r\n".repeat(9));
    visitors
}

fn all_say(texts: &[String], named: &[&str]) {
    for text in texts {
        let error = said(text, "ERROR").concat();
        assert!(named.iter().all(|word| error.contains(word)), "{named:?} not in: {text}");
        let took: u64 = said(text, "TOOK").concat().parse().unwrap();
        assert!(took < 2 * DEADLINE.as_millis() as u64 + 2000, "took {took} ms");
    }
}

#[test]
fn all_ranks_join() {
    for way in ways() {
        let texts = start(&way, &[(0, 3), (1, 3), (2, 3)], "");
        assert!(texts.iter().all(|text| said(text, "TOTAL") == ["3"]), "{way:?}: {texts:?}");
    }
}

/// Whatever their store is, ranks of one machine share its memory, but for those that are to be hosts of their own.
#[test]
fn ranks_of_one_machine_share_memory_at_any_store() {
    for way in stores() {
        let way = way.with("EARLYBIRD_LEVELS", "2");
        let apart = way.clone().but_for(1, "EARLYBIRD_LEVELS", "1");
        for (way, fabric, hosts) in [(way, "shm", "[[0, 1, 2]]"), (apart, "ofi", "[[0, 2], [1]]")] {
            for (rank, text) in start(&way, &[(0, 3), (1, 3), (2, 3)], "").iter().enumerate() {
                assert_eq!((said(text, "FABRIC"), said(text, "TOTAL")), (vec![fabric], vec!["3"]), "{way:?}: {text}");
                assert_eq!(said(text, "HOSTS"), [hosts], "{way:?}: {text}");
                // Rank 0 sends for rank 2.
                let sends = fabric != "shm" && rank < 2;
                assert_eq!(said(text, "MESSAGES") != ["0"], sends, "{way:?}, rank {rank}: {text}");
            }
        }
    }
}

/// As in two containers that have one network: a rank cannot watch the other's process, so they are two hosts.
#[test]
fn ranks_in_two_process_namespaces_use_the_network() {
    let namespaces = ["--pid", "--fork", "--kill-child"];
    if common::libfabric().is_none() || !can_unshare(&namespaces) {
        return;
    }
    for text in meet_unshared(&tcp().store, &namespaces, &[0, 1]) {
        assert_eq!((said(&text, "FABRIC"), said(&text, "HOSTS")), (vec!["ofi"], vec!["[[0], [1]]"]), "{text}");
    }
}

/// The variables that a launcher gives to a rank on its own host: its identity, and where the others are.
fn launched(launcher: &str, rank: u32, port: u16) -> Vec<(String, String)> {
    let store = format!("tcp:127.0.0.1:{port}");
    let (rank, before) = (rank.to_string(), (port - 1).to_string());
    let variables: &[(&str, &str)] = match launcher {
        // torchrun listens on its own port and passes it on.
        "torchrun" => &[
            ("RANK", &rank),
            ("WORLD_SIZE", "3"),
            ("LOCAL_WORLD_SIZE", "1"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &before),
        ],
        "Slurm" => &[
            ("SLURM_PROCID", &rank),
            ("SLURM_NTASKS", "3"),
            ("SLURM_STEP_NUM_NODES", "3"),
            ("SLURM_JOB_ID", &before),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NODELIST", "localhost,two,three"),
        ],
        "Open MPI" => &[
            ("OMPI_COMM_WORLD_RANK", &rank),
            ("OMPI_COMM_WORLD_SIZE", "3"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
            ("PMIX_NAMESPACE", &before),
            ("EARLYBIRD_STORE", &store),
        ],
        _ => &[("PMI_RANK", &rank), ("PMI_SIZE", "3"), ("MPI_LOCALNRANKS", "1"), ("EARLYBIRD_STORE", &store)],
    };
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn ranks_of_several_hosts_meet_under_each_launcher() {
    if common::libfabric().is_none() {
        return;
    }
    let places = [("1", "ofi"), ("2", "shm")];
    for (launcher, (levels, fabric)) in ["torchrun", "Slurm", "Open MPI", "MPICH"]
        .into_iter()
        .flat_map(|launcher| places.map(|place| (launcher, place)))
    {
        // torchrun's own port, on which it listens all the time.
        let theirs = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = theirs.local_addr().unwrap().port() + 1;
        let start = |rank| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "rank", "--ignored", "--nocapture"])
                .env("TEST_ROLE", "")
                .env("EARLYBIRD_PROVIDER", common::PROVIDERS[0])
                .env("EARLYBIRD_LEVELS", levels)
                .envs(launched(launcher, rank, port))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let ranks: Vec<_> = (0..3).map(start).collect();
        for rank in ranks {
            let text = String::from_utf8(rank.wait_with_output().unwrap().stdout).unwrap();
            assert_eq!((said(&text, "FABRIC"), said(&text, "TOTAL")), (vec![fabric], vec!["3"]), "{launcher}: {text}");
            let name = if launcher == "MPICH" { "PMI" } else { launcher };
            assert_eq!(said(&text, "LAUNCHER"), [name], "{text}");
        }
    }
}

#[test]
fn a_missing_rank_is_named() {
    side_by_side(ways(), |way| {
        all_say(&start(&way, &[(0, 4), (2, 4), (3, 4)], ""), &["rank 1 did not come within"]);
    });
}

#[test]
fn a_missing_rank_zero_is_named() {
    side_by_side(ways(), |way| {
        all_say(&start(&way, &[(1, 3), (2, 3)], ""), &["rank 0 did not come within"]);
    });
}

#[test]
fn a_rank_that_comes_twice_is_named() {
    // In a folder the second overwrites the file of the first, and one of them is answered.
    side_by_side(ways().into_iter().filter(|way| !way.is("file:")).collect(), |way| {
        // Rank 2 does not come, so rank 0 waits until both have come, however busy the machine is.
        all_say(&start(&way, &[(0, 3), (1, 3), (1, 3)], ""), &["two processes came as rank 1"]);
    });
}

#[test]
fn world_sizes_that_differ_are_both_named() {
    for way in ways() {
        all_say(&start(&way, &[(0, 2), (1, 3)], ""), &["3 ranks on rank 1", "2 on rank 0"]);
    }
}

#[test]
fn two_ranks_zero_are_named() {
    side_by_side(ways().into_iter().filter(|way| !way.is("file:")).collect(), |way| {
        let texts = start(&way, &[(0, 2), (0, 2)], "");
        assert!(texts.iter().any(|text| text.contains("told to be rank 0")), "{texts:?}");
        assert!(texts.iter().all(|text| !said(text, "ERROR").is_empty()), "{texts:?}");
    });
}

#[test]
fn a_stranger_at_the_meeting_is_ignored() {
    side_by_side(ways(), |way| {
        let texts = start(&way, &[(0, 2), (1, 2)], "strangers");
        assert!(texts.iter().all(|text| said(text, "TOTAL") == ["2"]), "{way:?}: {texts:?}");
    });
}

#[test]
fn leaving_without_finish_is_death() {
    for way in ways() {
        let texts = start(&way, &[(0, 3), (1, 3), (2, 3)], "mute");
        for text in [&texts[0], &texts[2]] {
            assert!(said(text, "ERROR").concat().contains("rank 1 died"), "{way:?}: {text}");
        }
    }
}

#[test]
fn a_rank_without_the_secret_is_refused() {
    for way in stores() {
        let way = way.with("EARLYBIRD_SECRET", "speak friend and enter").but_for(
            1,
            "EARLYBIRD_SECRET",
            "open sesame, please",
        );
        let texts = start(&way, &[(0, 2), (1, 2)], "");
        all_say(&texts, &["secret"]);
        assert!(texts[1].contains("does not know this job's secret"), "{texts:?}");
        assert!(
            !texts.concat().contains("speak friend and enter") && !texts.concat().contains("open sesame, please"),
            "a secret is never printed"
        );
    }
    for way in stores() {
        let texts = start(&way.with("EARLYBIRD_SECRET", "speak friend and enter"), &[(0, 2), (1, 2)], "");
        assert!(texts.iter().all(|text| said(text, "TOTAL") == ["2"]), "{texts:?}");
    }
}

/// A program keeps to the launcher's secret, as to its ranks and its store, whatever else it configures.
#[test]
fn a_program_that_configures_itself_keeps_to_the_secret() {
    side_by_side(stores(), |way| {
        let way = way.with("EARLYBIRD_SECRET", "speak friend and enter").but_for(
            1,
            "EARLYBIRD_SECRET",
            "open sesame, please",
        );
        all_say(&start(&way, &[(0, 2), (1, 2)], "plain"), &["secret"]);
    });
}

/// An executable that other users can reach: this one may lie in a private folder.
fn copy_for_everybody() -> std::path::PathBuf {
    let copy = std::env::temp_dir().join(format!("earlybird-test-{}", fresh()));
    // Another process copies it: if a test forked while this process wrote, the copy would stay
    // open and could not be started.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&copy).status();
    assert!(copied.unwrap().success());
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    copy
}

#[test]
fn a_rank_of_another_user_is_refused_by_name() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return common::skipped(Need::Root, "only root can start a process as another user");
    }
    let program = copy_for_everybody();
    if let Err(problem) = Command::new(&program).arg("--list").uid(NOBODY).output() {
        std::fs::remove_file(&program).unwrap();
        let why = format!("another user cannot run {}: {problem}", program.display());
        return common::skipped(Need::Root, why);
    }
    for way in ways().into_iter().filter(|way| way.is("unix:")) {
        let begin = |rank: u32| {
            let mut command = Command::new(&program);
            command.env("EARLYBIRD_STORE", &way.store).envs(way.variables.iter().map(|(name, value)| (name, value)));
            if rank == 1 {
                command.uid(NOBODY);
            }
            common::start(&mut command, (rank, 2), "rank", "")
        };
        let job = Job { ranks: (0..2).map(begin).collect() };
        let texts: Vec<_> = job.finish(10 * DEADLINE).into_iter().map(|(_, text)| text).collect();
        all_say(&texts[..1], &["rank 1 did not come within", &format!("belongs to user {NOBODY}, where user 0")]);
        all_say(&texts[1..], &[&format!("belongs to user 0, where user {NOBODY} was expected"), "EARLYBIRD_STORE"]);
    }
    std::fs::remove_file(program).unwrap();
}

/// What two ranks say that meet at `store`, those `inside` in namespaces of their own.
fn meet_unshared(store: &str, namespaces: &[&str], inside: &[u32]) -> Vec<String> {
    let begin = |rank: u32| {
        let own = std::env::current_exe().unwrap();
        let mut command = match inside.contains(&rank) {
            true => Command::new("unshare"),
            false => Command::new(&own),
        };
        if inside.contains(&rank) {
            command.args(namespaces).arg(&own);
        }
        common::start(command.env("EARLYBIRD_STORE", store), (rank, 2), "rank", "")
    };
    let job = Job { ranks: (0..2).map(begin).collect() };
    job.finish(10 * DEADLINE).into_iter().map(|(_, text)| text).collect()
}

/// Whether there are such namespaces; prints a message if not.
fn can_unshare(namespaces: &[&str]) -> bool {
    let probe = Command::new("unshare").args(namespaces).arg("true").output();
    let can = probe.as_ref().is_ok_and(|probe| probe.status.success());
    if !can {
        common::skipped(Need::Namespaces, format_args!("no namespaces {namespaces:?} here: {probe:?}"));
    }
    can
}

/// Over shared memory ranks watch each other's processes.
#[test]
fn a_rank_in_another_process_namespace_is_refused_by_name() {
    let namespaces = ["--pid", "--fork", "--kill-child"];
    if !can_unshare(&namespaces) {
        return;
    }
    let meet = |inside: &[u32]| meet_unshared(&shm().store, &namespaces, inside);
    // A guest cannot see the host, but the host sees the guest.
    let texts = meet(&[1]);
    all_say(&texts[..1], &["rank 1 did not come within"]);
    let remedies = ["--pid=container:NAME, and the same with --network", "meet at tcp:HOST:PORT"];
    let named = |rank| [&[rank][..], &remedies].concat();
    all_say(&texts[1..], &named("rank 0 lives in another process namespace"));
    // The host cannot see a guest, and tells all ranks.
    all_say(&meet(&[0]), &named("rank 1 lives in another process namespace"));
    // Neither sees the other, as in two containers.
    all_say(&meet(&[0, 1]), &named("lives in another process namespace"));
}

/// Each network namespace has abstract sockets of its own, so ranks cannot meet at one.
#[test]
fn ranks_in_two_network_namespaces_are_told_so() {
    if can_unshare(&["--net"]) {
        let texts = meet_unshared(&shm().store, &["--net"], &[1]);
        all_say(&texts[..1], &["rank 1 did not come within", "one network namespace", "--network=container:NAME"]);
        all_say(&texts[1..], &["rank 0 did not come within", "one network namespace", "--network=container:NAME"]);
    }
}

/// A program that listens on a port and sends this to every visitor, with a pause after each byte. The store is there.
fn squat(says: &'static [u8], pause: Duration) -> Way {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let way = over_libfabric(format!("tcp:{}", listener.local_addr().unwrap()));
    std::thread::spawn(move || {
        for mut visitor in listener.incoming().flatten() {
            std::thread::spawn(move || {
                for byte in says {
                    let _ = visitor.write_all(&[*byte]);
                    std::thread::sleep(pause);
                }
                // Then it sends nothing more, and stays.
                std::thread::sleep(10 * DEADLINE);
            });
        }
    });
    way
}

#[test]
fn a_port_that_another_program_uses_is_named() {
    let slowly = Duration::from_millis(500);
    let programs = vec![
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], Duration::ZERO),
        (b"", slowly),
        (b"220 mail.example.org ESMTP", slowly),
    ];
    side_by_side(programs, |(says, pause)| {
        if common::libfabric().is_none() {
            return;
        }
        let way = squat(says, pause);
        let texts = start(&way, &[(0, 2), (1, 2)], "");
        all_say(&texts, &[&way.store]);
        assert!(texts[0].contains("another process listens there already"), "{texts:?}");
        assert!(texts[1].contains("is the port used by another program?"), "{texts:?}");
    });
}

#[test]
fn errors_say_what_libfabric_cannot_do() {
    let Some(way) = stores().into_iter().next() else { return };
    let alone = |way: Way| start(&way, &[(0, 1)], "");
    all_say(
        &alone(way.clone().with("EARLYBIRD_PROVIDER", "carrier-pigeon")),
        &["no device of carrier-pigeon", "earlybird info"],
    );
    all_say(&alone(way.clone().with("EARLYBIRD_DEVICE", "eth77")), &["tcp;ofi_rxm has no device eth77; it has "]);
    all_say(
        &alone(way.clone().with("EARLYBIRD_LIBFABRIC", "/no/such/file")),
        &["/no/such/file cannot be loaded", "install"],
    );
    all_say(&alone(way.clone().with("EARLYBIRD_LIBFABRIC", "libc.so.6")), &["too old, or no libfabric", "install"]);
    let apart = start(&way.clone().with("EARLYBIRD_FABRIC", "shm"), &[(0, 2), (1, 2)], "");
    all_say(&apart, &["EARLYBIRD_FABRIC=shm is for ranks that share memory, and rank 0 and rank 1 do not"]);
    let mixed = way.but_for(1, "EARLYBIRD_PROVIDER", "sockets");
    all_say(&start(&mixed, &[(0, 2), (1, 2)], ""), &["the network is ", "tcp;ofi_rxm", "sockets"]);
}
