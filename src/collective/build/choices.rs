//! What all ranks must choose alike; they tell it to each other and compare.

use super::AllreduceBuilder;
use crate::collective::checkpoint::Checkpoint;
use crate::collective::choices::{Choices, digest};
use crate::collective::core::Plan;
use crate::collective::recording;
use crate::reduce::Item;
use crate::rule::AgreementBy;

impl<T: Item> AllreduceBuilder<'_, T> {
    /// Returns the lengths of the tensors, or a digest of them if there are many.
    fn tensors(&self) -> String {
        let shown = self.lengths.iter().take(8).map(usize::to_string).collect::<Vec<_>>().join("+");
        let mixed = digest(self.lengths.iter().map(|&length| length as u64));
        match self.lengths.len() {
            0..=8 => shown,
            count => format!("{count}: {shown}+... ({mixed:016x})"),
        }
    }

    /// Returns all that must be the same on all ranks.
    pub(super) fn choices(&self, plan: &Plan) -> Choices {
        let schedule = |plan: &Plan| match plan.agreement {
            AgreementBy::Gates => plan.schedule.name().to_owned(),
            AgreementBy::Relays if plan.radix == 1 => "a star".to_owned(),
            AgreementBy::Relays => format!("{} of radix {}", plan.schedule.name(), plan.radix),
            _ => "none".to_owned(),
        };
        // At this point it is unknown whether there is a provider.
        let otherwise = (plan.agreement == AgreementBy::Runner).then(|| self.plan(false).ok()).flatten();
        let otherwise = otherwise.map(|plan| format!("{} {}", plan.path_name(), schedule(&plan)));
        let relays = self.may_relay() && self.would_relay(plan.bytes);
        let mut choices = self.common_choices();
        choices.extend([
            (
                "whether ranks relay (mover auto: by hw-config, and if the executor is auto or thread)",
                relays.to_string(),
            ),
            ("the path (by hw-config)", plan.path_name().to_owned()),
            ("the segment (by hw-config)", plan.segment.to_string()),
            ("the piece (by hw-config)", (plan.run * plan.segment as u64).to_string()),
            ("the schedule (by hw-config)", schedule(plan)),
            ("the path without a provider (by hw-config)", otherwise.unwrap_or_default()),
        ]);
        choices
    }

    /// Returns the part of them that was chosen on this rank.
    pub(super) fn common_choices(&self) -> Choices {
        let total: usize = self.lengths.iter().sum();
        vec![
            ("the length", total.to_string()),
            ("the tensors", self.tensors()),
            ("the element type", self.chosen.dtype.to_string()),
            ("fire", self.chosen.fire.to_string()),
            ("grace", self.chosen.grace.to_string()),
            ("absent", self.chosen.absent.to_string()),
            ("reduce", self.chosen.reduce.to_string()),
            ("scale", self.chosen.scale.to_string()),
            ("depth", self.chosen.depth.to_string()),
            ("group", self.chosen.group.to_string()),
            ("the model", self.model_digest()),
            ("the checkpoint", self.restored.map_or_else(|| "none".to_owned(), Checkpoint::name)),
            ("whether it is recorded or replayed", recording::name(self.world).to_owned()),
            ("mover", self.chosen.mover.to_string()),
        ]
    }
}
