//! `earlybird bench`: latency of collectives, balanced or with stragglers, always checked.

mod alone;
mod arm;
mod buckets;
mod conditions;
mod measure;
mod options;
mod p2p;
mod picture;
mod report;
mod synchronous;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::units::Number;
use crate::{Absent, Dtype, Fire, Group, Mover, Preset, When, World, bf16, f16};
use clap::ValueEnum;

use super::common::{Common, Membership};
use super::launch::again;
use super::skew::Skew;
use conditions::{Conditions, Form};
use measure::Case;
use picture::Picture;
use report::Report;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum BenchOp {
    /// The collective
    Allreduce,
    /// The collective where groups of ranks average models
    #[value(name = "group_allreduce")]
    GroupAllreduce,
    /// The collective where groups of ranks average models by order of arrival
    #[value(name = "p_reduce")]
    PReduce,
    /// Steps in which gradients become ready one after the other, and share messages
    Buckets,
    /// What one rank has, to all: synchronous, of any length, in private memory; so are those that follow
    Broadcast,
    /// What all ranks have, to one
    Gather,
    /// What all ranks have, to all
    #[value(name = "all_gather")]
    AllGather,
    /// A block of one rank's data to each rank
    Scatter,
    /// A block of each rank's data to each rank
    #[value(name = "all_to_all")]
    AllToAll,
    /// The sum of all ranks' data, to one
    Reduce,
    /// A block of the sum of all ranks' data to each rank
    #[value(name = "reduce_scatter")]
    ReduceScatter,
    /// The sum of all ranks' data, to all
    #[value(name = "all_reduce")]
    AllReduce,
    /// Half of a round trip of writes, each with a signal; two ranks
    #[value(name = "write_lat")]
    WriteLat,
    /// Writes, 64 of them in flight; two ranks
    #[value(name = "write_bw")]
    WriteBw,
    /// An atomic and its answer; two ranks
    #[value(name = "fetch_add_lat")]
    FetchAddLat,
    /// A solo round, on the rank that makes it while all others are away
    #[value(name = "solo_lat")]
    SoloLat,
    /// Queueing the operations of a round in a provider that runs them by itself
    Arm,
}

impl BenchOp {
    /// Returns whether it is between two ranks.
    fn is_between_two(self) -> bool {
        matches!(self, BenchOp::WriteLat | BenchOp::WriteBw | BenchOp::FetchAddLat)
    }

    /// Returns whether all ranks wait for each other, without a collective that was built before.
    fn is_synchronous(self) -> bool {
        use BenchOp::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
        matches!(self, Broadcast | Gather | AllGather | Scatter | AllToAll | Reduce | ReduceScatter | AllReduce)
    }

    /// Returns whether it is between all ranks, by the collective.
    fn is_collective(self) -> bool {
        matches!(self, BenchOp::Allreduce | BenchOp::GroupAllreduce | BenchOp::PReduce)
    }
}

impl std::fmt::Display for BenchOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            BenchOp::Allreduce => "allreduce",
            BenchOp::GroupAllreduce => "group_allreduce",
            BenchOp::PReduce => "p_reduce",
            BenchOp::Buckets => "buckets",
            BenchOp::Broadcast => "broadcast",
            BenchOp::Gather => "gather",
            BenchOp::AllGather => "all_gather",
            BenchOp::Scatter => "scatter",
            BenchOp::AllToAll => "all_to_all",
            BenchOp::Reduce => "reduce",
            BenchOp::ReduceScatter => "reduce_scatter",
            BenchOp::AllReduce => "all_reduce",
            BenchOp::WriteLat => "write_lat",
            BenchOp::WriteBw => "write_bw",
            BenchOp::FetchAddLat => "fetch_add_lat",
            BenchOp::SoloLat => "solo_lat",
            BenchOp::Arm => "arm",
        })
    }
}

/// Where the caller's data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Buffers {
    /// Written and read in place
    Registered,
    /// Copied in and out, inside the timed part
    Private,
}

/// Without arguments: a tour of about half a minute that shows what partial collectives are for.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// What is measured
    #[arg(long, value_enum, default_value = "allreduce")]
    op: BenchOp,
    /// Firing rule: auto, auto=SHARE%, all, solo, quorum=Q, majority, majority=SEED or deadline=TIME; append
    /// ,deadline=TIME and ,full=K; may be repeated [default: all]
    #[arg(long, value_name = "RULE")]
    fire: Vec<Fire>,
    /// Smallest size
    #[arg(short = 'b', long = "begin", value_parser = super::size, default_value = "8")]
    begin: u64,
    /// Largest size [default: the smallest]
    #[arg(short = 'e', long = "end", value_parser = super::size)]
    end: Option<u64>,
    /// Factor from size to size
    #[arg(short = 'f', long = "factor", default_value_t = 2)]
    factor: u64,
    /// Rounds before measuring
    #[arg(short = 'w', long, default_value_t = 10)]
    warmup: u32,
    /// Rounds measured [default: as many as fit into --seconds; 1000 for --op solo_lat]
    #[arg(long)]
    iters: Option<u32>,
    /// About how long a row of a collective takes, if --iters is not given
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, conflicts_with = "iters")]
    seconds: f64,
    /// Which ranks are late: none, linear:1ms, half:10ms, one:RANK:200ms, random:K:200ms, lognormal:MEAN:SIGMA,
    /// failslow:FACTOR:START:END[:RANKS] (rounds; these ranks, or the last, take a multiple of 1 ms), trace:FILE (lines of
    /// step,rank,seconds)
    #[arg(long, default_value = "none")]
    skew: Skew,
    /// For --op solo_lat: stop the processes of the other ranks meanwhile. All are on this machine, over shm, or over verbs
    /// with a device that has atomics. If rank 0 is killed then, they go on when they get SIGCONT
    #[arg(long)]
    stopped: bool,
    /// Where the data lies
    #[arg(long, value_enum, default_value = "registered")]
    buffers: Buffers,
    /// Element type: f32, f64, f16, bf16, i32, i64, u32, u64, i8, u8 or i16
    #[arg(long, default_value = "f32")]
    dtype: Dtype,
    /// Which ranks average. For --op group_allreduce: world or butterfly=SIZE [default: groups of about the root of the
    /// number of ranks]; for --op p_reduce: arrivals=SIZE [default: groups of half the ranks, of
    /// two to four]
    #[arg(long)]
    group: Option<Group>,
    /// Comma-separated values, after the conditions in lines that begin with #
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// For collectives with rules: draw latency over size, a line for each rule, into a file that ends in .svg or .html
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// With --plot: also draw the rows of this file, which are as --json prints them (bytes, p50_us, name); may be
    /// repeated
    #[arg(long, value_name = "FILE", requires = "plot")]
    overlay: Vec<PathBuf>,
    #[command(flatten)]
    choices: buckets::Choices,
    #[command(flatten)]
    common: Common,
}

const MOST_BYTES: u64 = 1 << 36;

impl Args {
    /// Checks all options before anything is started.
    fn check(&self, ranks: u32) -> Result<Vec<u64>, String> {
        self.common.check(ranks, &self.fire)?;
        options::check(self)?;
        let by_arrival = |group: Group| matches!(group, Group::Arrivals(_));
        let fits = |group| match self.op {
            BenchOp::GroupAllreduce => !by_arrival(group),
            BenchOp::PReduce => by_arrival(group),
            _ => false,
        };
        if let Some(group) = self.group.filter(|&group| !fits(group)) {
            let use_for =
                "--op p_reduce has arrivals=SIZE, --op group_allreduce the others, and no other op has groups";
            return Err(format!("--group {group} is not for --op {}: {use_for}", self.op));
        }
        if let Some(Group::Arrivals(size) | Group::Butterfly(size)) = self.group
            && size > ranks
        {
            return Err(format!("--group of {size}: there are {ranks} ranks; use -n {size} or more"));
        }
        if self.op == BenchOp::PReduce && self.fires().iter().any(|fire| fire.when() != When::All || fire.is_full(0)) {
            return Err("--op p_reduce: groups fire when they are full; omit --fire, or use --fire all,deadline=TIME"
                .to_owned());
        }
        let fits_models =
            matches!(self.common.absent, Absent::Carry | Absent::Hold) && self.common.mover != Mover::Tree;
        if self.op == BenchOp::PReduce && !fits_models {
            return Err("--op p_reduce: --absent is carry or hold, and --mover auto or cut".to_owned());
        }
        if matches!(self.op, BenchOp::PReduce | BenchOp::GroupAllreduce) && !self.dtype.is_float() {
            return Err(format!("--op {} averages floating-point models; --dtype {} is none", self.op, self.dtype));
        }
        if self.op == BenchOp::SoloLat {
            alone::check(self, ranks)?;
        }
        self.plot.iter().try_for_each(|file| Picture::new(file, &self.overlay).map(drop))?;
        if self.op.is_between_two() && ranks != 2 {
            return Err(format!("--op {} is between two ranks; {ranks} were asked for", self.op));
        }
        let element = self.dtype.size() as u64;
        if self.op.is_collective() && (1..element).contains(&self.begin) {
            return Err(format!("-b {}: an element of {} has {element} bytes", self.begin, self.dtype));
        }
        let end = self.end.unwrap_or(self.begin);
        if end < self.begin {
            return Err(format!("the largest size ({end}) is less than the smallest ({})", self.begin));
        }
        if end > MOST_BYTES {
            return Err(format!("{end} bytes are more than the {MOST_BYTES} that can be measured"));
        }
        if self.factor < 2 {
            return Err("the factor between sizes must be 2 or more".to_owned());
        }
        if self.iters == Some(0) {
            return Err("0 rounds show nothing; use --iters 1 or more".to_owned());
        }
        if !(self.seconds > 0.0 && self.seconds <= 86_400.0) {
            let seconds = Number(self.seconds);
            return Err(format!("--seconds {seconds}: a row takes more than 0 and at most 86400 seconds"));
        }
        self.skew.check(ranks)?;
        let mut sizes = vec![self.begin];
        while let Some(next) =
            sizes.last().and_then(|&size| size.max(1).checked_mul(self.factor)).filter(|&next| next <= end)
        {
            sizes.push(next);
        }
        Ok(sizes)
    }

    /// Returns which ranks average models, if they do.
    fn group(&self, ranks: u32) -> Option<Group> {
        let usual = match self.op {
            BenchOp::GroupAllreduce => Preset::Wagma.group(ranks),
            BenchOp::PReduce => Preset::PReduce.group(ranks),
            _ => None,
        };
        self.group.or(usual)
    }

    fn fires(&self) -> Vec<Fire> {
        if self.fire.is_empty() { vec![Fire::ALL] } else { self.fire.clone() }
    }
}

pub(super) fn main(args: Args) -> super::Outcome {
    let tour = std::env::args_os().len() == 2;
    let Membership { ranks, launched, config } = args.common.start.place(if tour { TOUR_RANKS } else { 2 })?;
    let sizes = args.check(ranks)?;
    let trace = (args.op == BenchOp::Buckets).then(|| args.choices.trace()).transpose()?;
    if !launched {
        return again(ranks, args.common.start.bind, &config);
    }
    let world = World::with(&config)?;
    let form = match (args.common.start.json, args.csv) {
        (true, _) => Some(Form::Json),
        (_, true) => Some(Form::Csv),
        _ => None,
    };
    let conditions = form.map(|form| Conditions::new(&world, &config, &args, form));
    let conditions = conditions.as_ref();
    if args.op == BenchOp::Arm {
        arm::run(&world, args.begin, (args.warmup, args.iters), conditions)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(trace) = trace {
        return verdict(buckets::run(&world, &args, &trace, conditions)?);
    }
    if args.op.is_synchronous() {
        return verdict(synchronous::run(
            &world,
            args.op,
            &sizes,
            (args.warmup, args.iters, args.seconds),
            conditions,
        )?);
    }
    if args.op == BenchOp::SoloLat {
        return verdict(alone::run(&world, &args, &sizes, conditions)?);
    }
    if !args.op.is_collective() {
        p2p::run(&world, args.op, &sizes, (args.warmup, args.iters), conditions)?;
        return Ok(ExitCode::SUCCESS);
    }
    if tour { take_tour(&world, &args)? } else { measure_all(&world, &args, &sizes, conditions)? }
}

fn measure_all(
    world: &World,
    args: &Args,
    sizes: &[u64],
    conditions: Option<&Conditions>,
) -> Result<super::Outcome, Box<dyn std::error::Error>> {
    let picture = args.plot.as_ref().map(|file| Picture::new(file, &args.overlay)).transpose()?;
    let mut report = Report::new(world, args.group(world.size()), conditions).with_picture(picture);
    let mut wrong = 0;
    for fire in args.fires() {
        for &bytes in sizes {
            wrong += measure_one(world, args, fire, bytes, &mut report)?;
        }
    }
    report.explain();
    report.draw()?;
    Ok(verdict(wrong))
}

fn verdict(wrong: u64) -> super::Outcome {
    if wrong == 0 { Ok(ExitCode::SUCCESS) } else { Err(format!("{wrong} wrong results").into()) }
}

fn measure_one(
    world: &World,
    args: &Args,
    fire: Fire,
    bytes: u64,
    report: &mut Report<'_>,
) -> Result<u64, Box<dyn std::error::Error>> {
    let case = Case {
        fire,
        grace: args.common.grace,
        absent: args.common.absent,
        depth: args.common.depth,
        mover: args.common.mover,
        executor: args.common.executor,
        group: args.group(world.size()),
        bytes: usize::try_from(bytes)?,
        skew: args.skew.clone(),
        warmup: args.warmup,
        iters: args.iters.unwrap_or(TRIAL),
        private: args.buffers == Buffers::Private,
        seed: args.common.seed,
    };
    let case = match args.iters {
        Some(_) => case,
        None => {
            let pace = run(world, args.dtype, &case)?.pace;
            Case { iters: iters_within(args.seconds, pace), ..case }
        }
    };
    let result = run(world, args.dtype, &case)?;
    report.row(&case, &result);
    Ok(result.wrong)
}

/// Measures a case with elements of a type.
fn run(world: &World, dtype: Dtype, case: &Case) -> Result<measure::Measured, Box<dyn std::error::Error>> {
    Ok(match dtype {
        Dtype::F32 => measure::run::<f32>(world, case),
        Dtype::F64 => measure::run::<f64>(world, case),
        Dtype::F16 => measure::run::<f16>(world, case),
        Dtype::Bf16 => measure::run::<bf16>(world, case),
        Dtype::I32 => measure::run::<i32>(world, case),
        Dtype::U32 => measure::run::<u32>(world, case),
        Dtype::I64 => measure::run::<i64>(world, case),
        Dtype::U64 => measure::run::<u64>(world, case),
        Dtype::I8 => measure::run::<i8>(world, case),
        Dtype::U8 => measure::run::<u8>(world, case),
        Dtype::I16 => measure::run::<i16>(world, case),
        Dtype::Bool => return Err("--dtype bool has no sums to measure; use u8".into()),
    }?)
}

/// The number of iterations that show how many fit into the time of a row.
const TRIAL: u32 = 20;

/// Returns how many iterations fit into a time, if one takes `pace` seconds.
fn iters_within(seconds: f64, pace: f64) -> u32 {
    (seconds / pace.max(1e-9)).clamp(10.0, 1e6) as u32
}

/// The number of ranks of a tour that no launcher has started.
const TOUR_RANKS: u32 = 8;

/// Shows one straggler, then all ranks a little apart, then no late rank: all against quorum and solo. It is for
/// people: with an option, such as --json, there is no tour.
fn take_tour(world: &World, args: &Args) -> Result<super::Outcome, Box<dyn std::error::Error>> {
    let (ranks, last) = (world.size(), world.size() - 1);
    let half = Fire::quorum((ranks / 2).max(1));
    let one = format!("One rank of {ranks} is 20 ms late. An ordinary allreduce makes every rank wait for it:");
    let mut wrong = 0;
    for (title, skew, iters) in [
        (&*one, &*format!("one:{last}:20ms"), 100),
        ("Every rank a millisecond later than the one before (the PPoPP'20 protocol):", "linear:1ms", 100),
        ("No rank is late. The price of not having to wait:", "none", 2000),
    ] {
        if world.rank() == 0 {
            say!("{title}");
        }
        let mut report = Report::new(world, None, None).with_room_for(half);
        for fire in [Fire::ALL, half, Fire::SOLO] {
            for bytes in [64, 65_536] {
                let args = Args { skew: skew.parse()?, iters: Some(iters), ..args.clone() };
                wrong += measure_one(world, &args, fire, bytes, &mut report)?;
            }
        }
        if world.rank() == 0 {
            say!("");
        }
    }
    if world.rank() == 0 {
        say!("mean_us: from arriving to having the outcome, mean over ranks. fresh: contributions in the round they");
        say!("were made for; carried: late ones, which entered a later round instead. Nothing is lost: wrong is 0.");
    }
    Ok(verdict(wrong))
}

/// The deadline of every wait of the bench itself.
const PATIENCE: Duration = Duration::from_secs(120);
