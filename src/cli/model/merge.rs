//! `earlybird model merge`: which gradients share a message, over the number of GPUs.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use crate::Dtype;
use crate::merge::{Bucket, Cost, Merging, Planner};
use crate::units::{Bytes, Number};
use serde_json::json;

use super::super::table::Table;
use super::network::{Algorithm, Network};
use super::trace::Trace;

/// Speed-ups are of an iteration: the forward pass, then the backward pass with its messages.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// CSV with the header elements,backward_seconds and a line a gradient in backward order; # begins a
    /// comment [default: GoogLeNet on a K80, measured by the authors of MG-WFBP]
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Numbers of GPUs, with commas between; A..B doubles from A to B. A single one prints its messages, too
    #[arg(long, value_name = "LIST", default_value = "4..2048")]
    gpus: Gpus,
    /// How GPUs sum
    #[arg(long, value_enum, default_value = "ring")]
    allreduce: Algorithm,
    /// α: microseconds of a step, or of a measured allreduce [default: 45.25, with a K80 on 10 Gb/s Ethernet]
    #[arg(long)]
    alpha_us: Option<f64>,
    /// β: nanoseconds of a byte on a link, or in a measured allreduce [default: 0.9934, on the same network]
    #[arg(long)]
    beta_ns: Option<f64>,
    /// Nanoseconds to sum a byte [default: 2.5, on the same machines]
    #[arg(long)]
    gamma_ns: Option<f64>,
    /// Milliseconds of the forward pass [default: half of the backward pass]
    #[arg(long)]
    forward_ms: Option<f64>,
    /// Element type: f32, f64, f16, bf16, i32, i64, u32, u64, i8, u8, i16 or bool
    #[arg(long, default_value = "f32")]
    dtype: Dtype,
    /// Bytes that complete a bucket of fixed size
    #[arg(long, value_name = "SIZE", value_parser = super::super::size, default_value = "25M")]
    bucket: u64,
    /// JSON Lines: an object for each number of GPUs and each merging, with its messages
    #[arg(long)]
    json: bool,
}

/// Numbers of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Gpus(Vec<u32>);

const MOST_GPUS: u32 = 1 << 20;

const MOST_ALPHA_US: f64 = 60e6;
const MOST_NS: f64 = 1e6;
const MOST_FORWARD_MS: f64 = 86_400e3;

/// The number of messages of a plan that a row of the table shows.
const SHOWN: usize = 12;

impl FromStr for Gpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| {
            let number = part.trim().parse().ok().filter(|number| (1..=MOST_GPUS).contains(number));
            number.ok_or_else(|| format!("{part:?} is no number of GPUs; use 1 to {MOST_GPUS}, as in 4,8 or 4..2048"))
        };
        let mut gpus = Vec::new();
        for part in text.split(',') {
            let (from, to) = match part.split_once("..") {
                Some((from, to)) => (number(from)?, number(to)?),
                None => (number(part)?, number(part)?),
            };
            if from > to {
                return Err(format!("{part:?} goes down; write the smaller number first"));
            }
            gpus.extend(std::iter::successors(Some(from), |last| Some(last * 2)).take_while(|next| *next <= to));
        }
        Ok(Gpus(gpus))
    }
}

/// The prediction for a number of GPUs.
struct Prediction {
    gpus: u32,
    cost: Cost,
    plans: Vec<PredictedPlan>,
}

struct PredictedPlan {
    name: String,
    buckets: Vec<Bucket>,
    iteration: Duration,
    speedup: f64,
}

pub(super) fn main(args: &Args) -> super::super::Outcome {
    let network = args.network()?;
    let trace = Trace::load(args.trace.as_deref(), args.dtype.size() as u64)?;
    let forward = match args.forward_ms {
        Some(ms) => Duration::from_secs_f64(within("--forward-ms", ms, MOST_FORWARD_MS)? / 1e3),
        None => trace.backward / 2,
    };
    let mut planner = Planner::default();
    let predictions = args.gpus.0.iter().map(|&gpus| {
        let cost = network.cost(gpus);
        let plans = args.mergings().map(|(name, merging)| {
            let buckets = planner.plan(merging, &trace.gradients, cost).to_vec();
            let iteration = forward + buckets.last().map_or(trace.backward, |bucket| bucket.end);
            let alone = (forward + trace.backward).as_secs_f64();
            PredictedPlan { name, buckets, iteration, speedup: f64::from(gpus) * alone / iteration.as_secs_f64() }
        });
        Prediction { gpus, cost, plans: plans.into() }
    });
    if args.json {
        for prediction in predictions {
            args.print_json(&prediction, &trace, forward);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let predictions: Vec<Prediction> = predictions.collect();
    say!(
        "{}: {} gradients, {}, backward {} ms, forward {} ms, allreduce: {}",
        args.name(),
        trace.gradients.len(),
        Bytes(trace.bytes()),
        ms(trace.backward),
        ms(forward),
        args.allreduce.name()
    );
    say!("Speed-ups over one GPU and ms of an iteration by merging, then messages of optimal and gradients in each:");
    say!("{}", summary(&predictions));
    if let [Prediction { plans, .. }] = &predictions[..] {
        say!("\nMessages of optimal, in ms since the backward pass began:");
        say!("{}", messages(&plans[plans.len() - 1], &trace));
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn network(&self) -> Result<Network, String> {
        let usual = Network::PUBLISHED;
        if self.allreduce == Algorithm::Measured {
            if self.alpha_us.is_none() || self.beta_ns.is_none() || self.gamma_ns.is_some() {
                return Err(
                    "--allreduce measured: give what was measured by --alpha-us and --beta-ns, and no --gamma-ns"
                        .to_owned(),
                );
            }
            if self.gpus.0.len() != 1 {
                return Err("--allreduce measured was measured with one number of GPUs: give that by --gpus".to_owned());
            }
        }
        Ok(Network {
            algorithm: self.allreduce,
            alpha_us: within("--alpha-us", self.alpha_us.unwrap_or(usual.alpha_us), MOST_ALPHA_US)?,
            beta_ns: within("--beta-ns", self.beta_ns.unwrap_or(usual.beta_ns), MOST_NS)?,
            gamma_ns: within("--gamma-ns", self.gamma_ns.unwrap_or(usual.gamma_ns), MOST_NS)?,
        })
    }

    fn name(&self) -> String {
        match &self.trace {
            Some(path) => path.display().to_string(),
            None => "GoogLeNet on a K80 (shyhuai/B-Caffe, logdata/tmpcomm.log)".to_owned(),
        }
    }

    /// Returns the mergings; the optimal one comes last.
    fn mergings(&self) -> [(String, Merging); 4] {
        [
            ("each".to_owned(), Merging::Each),
            ("one".to_owned(), Merging::One),
            (Bytes(self.bucket).to_string(), Merging::Bytes(self.bucket)),
            ("optimal".to_owned(), Merging::Optimal),
        ]
    }

    fn print_json(&self, prediction: &Prediction, trace: &Trace, forward: Duration) {
        for (plan, (_, merging)) in prediction.plans.iter().zip(self.mergings()) {
            let messages = plan.buckets.iter().map(|bucket| {
                json!({
                    "first": bucket.gradients.start + 1, "last": bucket.gradients.end, "bytes": bucket.bytes,
                    "begin_us": us(bucket.begin), "end_us": us(bucket.end),
                })
            });
            let (name, bucket) = match merging {
                Merging::Bytes(bytes) => ("bytes", Some(bytes)),
                _ => (plan.name.as_str(), None),
            };
            say!(
                "{}",
                json!({
                    "trace": self.name(), "gradients": trace.gradients.len(), "bytes": trace.bytes(),
                    "forward_us": us(forward), "backward_us": us(trace.backward), "allreduce": self.allreduce.name(),
                    "gpus": prediction.gpus, "message_us": us(prediction.cost.message),
                    "mib_us": us(prediction.cost.per_mib), "merging": name, "bucket_bytes": bucket,
                    "iteration_us": us(plan.iteration), "speedup": plan.speedup, "messages": messages.collect::<Vec<_>>(),
                })
            );
        }
    }
}

fn within(option: &str, value: f64, most: f64) -> Result<f64, String> {
    match (0.0..=most).contains(&value) {
        true => Ok(value),
        false => Err(format!("{option} {}: use 0 to {}", Number(value), Number(most))),
    }
}

fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

fn ms(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}

fn summary(predictions: &[Prediction]) -> Table {
    let names = |suffix| predictions[0].plans.iter().map(move |plan| format!("{}{suffix}", plan.name));
    let head = ["gpus", "α ms"].map(str::to_owned).into_iter().chain(names("")).chain(names(" ms"));
    let head: Vec<String> = head.chain(["messages", "gradients"].map(str::to_owned)).collect();
    let mut table = Table::new(&head.iter().map(String::as_str).collect::<Vec<_>>());
    for Prediction { gpus, cost, plans } in predictions {
        let optimal = &plans[plans.len() - 1].buckets;
        let mut row = vec![gpus.to_string(), format!("{:.2}", cost.message.as_secs_f64() * 1e3)];
        row.extend(plans.iter().map(|plan| format!("{:.1}", plan.speedup)));
        row.extend(plans.iter().map(|plan| ms(plan.iteration)));
        let counts: Vec<String> = optimal.iter().take(SHOWN).map(|bucket| bucket.gradients.len().to_string()).collect();
        let more = if optimal.len() > SHOWN { "+…" } else { "" };
        row.extend([optimal.len().to_string(), format!("{}{more}", counts.join("+"))]);
        table.row(&row);
    }
    table
}

fn messages(plan: &PredictedPlan, trace: &Trace) -> Table {
    let mut table = Table::new(&["gradients", "bytes", "ready", "begin", "end"]);
    for Bucket { gradients, bytes, begin, end } in &plan.buckets {
        let (first, last) = (gradients.start + 1, gradients.end);
        let ready = trace.gradients[last - 1].ready;
        let from_to = if first == last { last.to_string() } else { format!("{first}-{last}") };
        table.row(&[from_to, bytes.to_string(), ms(ready), ms(*begin), ms(*end)]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_gpus_are_listed_or_doubled() {
        for (text, gpus) in [
            ("16", &[16][..]),
            ("3, 5", &[3, 5]),
            ("4..40", &[4, 8, 16, 32]),
            ("1,4..4,8", &[1, 4, 8]),
            ("524288..1048576", &[524_288, 1 << 20]),
        ] {
            assert_eq!(text.parse(), Ok(Gpus(gpus.to_vec())), "{text}");
        }
        for text in ["", "0", "4,", "4..", "..8", "8..4", "-4", "1048577", "4..8..16", "four"] {
            assert!(text.parse::<Gpus>().is_err(), "{text}");
        }
    }
}
