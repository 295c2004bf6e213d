//! The table of variables.

use super::{LOG, SECRET};

/// An environment variable that this library reads.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// The name.
    pub name: &'static str,
    /// The value when it is not set.
    pub default: &'static str,
    /// The meaning.
    pub meaning: &'static str,
}

/// Every variable, ordered by importance.
pub const VARIABLES: [Variable; 25] = [
    Variable { name: "EARLYBIRD_RANK", default: "from the launcher", meaning: "this process's rank, from 0" },
    Variable { name: "EARLYBIRD_WORLD_SIZE", default: "from the launcher", meaning: "ranks in the world" },
    Variable {
        name: "EARLYBIRD_STORE",
        default: "from the job's identity",
        meaning: "where the ranks meet: unix:NAME (on one machine), tcp:HOST:PORT (a free port on the host of rank 0) or file:FOLDER (a shared one)",
    },
    Variable {
        name: SECRET,
        default: "drawn by `earlybird run`, else the job's identity",
        meaning: "the secret of this job: a store admits only ranks that know it",
    },
    Variable {
        name: "EARLYBIRD_FABRIC",
        default: "auto",
        meaning: "the transport between hosts: ofi (libfabric), verbs (InfiniBand and RoCE), or auto: verbs where every rank has a device, and ofi where not; ranks that share memory use that. shm allows no network",
    },
    Variable {
        name: "EARLYBIRD_LEVELS",
        default: "2",
        meaning: "2: ranks of one machine are a host and share memory; 1: each rank is a host of its own and uses the network",
    },
    Variable {
        name: "EARLYBIRD_PROVIDER",
        default: "libfabric's first that suits",
        meaning: "the libfabric provider, such as tcp;ofi_rxm (see `earlybird info`)",
    },
    Variable {
        name: "EARLYBIRD_DEVICE",
        default: "the provider's first, the closest RDMA device",
        meaning: "the provider's device, such as eth0; for verbs also with a port, such as mlx5_0:1, and with a second one behind a comma, such as mlx5_0,mlx5_1, over which half of large data goes",
    },
    Variable {
        name: "EARLYBIRD_GID_INDEX",
        default: "the best of the port",
        meaning: "the index of the GID for verbs (see `earlybird info`)",
    },
    Variable {
        name: "EARLYBIRD_TRAFFIC_CLASS",
        default: "0",
        meaning: "the traffic class of RoCE packets, 0 to 255: four times the DSCP that switches map to the lossless priority",
    },
    Variable {
        name: "EARLYBIRD_SERVICE_LEVEL",
        default: "0",
        meaning: "the service level of InfiniBand packets, 0 to 15",
    },
    Variable {
        name: "EARLYBIRD_LINK_TIMEOUT",
        default: "4s",
        meaning: "an RDMA device gives up a peer whose device answers nothing for about this long, 1ms to 2h",
    },
    Variable {
        name: "EARLYBIRD_SILENCE",
        default: "10s",
        meaning: "a rank on another machine that is silent for this long counts as dead",
    },
    Variable {
        name: "EARLYBIRD_CQ_DATA",
        default: "auto",
        meaning: "whether writes carry immediate data (remote completion data), where the provider can: auto, on, off",
    },
    Variable {
        name: "EARLYBIRD_DEVICE_ATOMICS",
        default: "auto",
        meaning: "whether network devices change memory for signals and atomics by themselves: auto (where they can), on, off (by messages to the home's processor)",
    },
    Variable {
        name: "EARLYBIRD_ORDERED_WRITES",
        default: "auto",
        meaning: "whether RDMA devices make a write to one cache line visible in ascending order, so that small data and its signal are one write: auto (cards do, Soft-RoCE does not), on, off",
    },
    Variable {
        name: "EARLYBIRD_MEMORY_POLLING",
        default: "off",
        meaning: "whether a rank that waits over verbs looks at its memory again and again, so that peers need not wake it: on (it keeps most of a core), off",
    },
    Variable {
        name: "EARLYBIRD_DEADLINE",
        default: "60s",
        meaning: "the time limit of calls that all ranks make together during set-up",
    },
    Variable {
        name: "EARLYBIRD_HW_CONFIG",
        default: "built in",
        meaning: "a file of measured parameters (see hw-configs/)",
    },
    Variable {
        name: "EARLYBIRD_LIBFABRIC",
        default: "libfabric.so.1",
        meaning: "the libfabric to load: a name or a path",
    },
    Variable {
        name: "EARLYBIRD_MEMORY_LIMIT",
        default: "none",
        meaning: "the most shared memory that may be taken at a time, such as 512M",
    },
    Variable {
        name: "EARLYBIRD_RECORD",
        default: "none",
        meaning: "records the rounds of collectives, for a replay or a report; rank R writes those of the N-th collective, from 0, to FILE.N.R",
    },
    Variable {
        name: "EARLYBIRD_REPLAY",
        default: "none",
        meaning: "replays what EARLYBIRD_RECORD has recorded in a run before: the same contributions enter each round",
    },
    Variable {
        name: "EARLYBIRD_TRACE",
        default: "none",
        meaning: "writes what happens in collectives as trace events, for Perfetto or Chrome; rank R writes FILE.R",
    },
    Variable {
        name: LOG,
        default: "warn",
        meaning: "the least level of messages: error, warn, info, debug, trace or off; on standard error, in Python by logging",
    },
];
