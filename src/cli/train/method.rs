//! How one training run differs from another.

use crate::{Absent, AllreduceBuilder, Checkpoint, Fire, Group, Preset, Scale, When};

/// A firing rule over gradients, or a preset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Method {
    pub(super) preset: Option<Preset>,
    pub(super) fire: Fire,
    /// Which ranks average models, if they do not sum gradients.
    group: Option<Group>,
    ranks: u32,
}

impl Method {
    pub(super) fn of_rule(fire: Fire) -> Self {
        Method { preset: None, fire, group: None, ranks: 0 }
    }

    pub(super) fn of_preset(preset: Preset, ranks: u32) -> Self {
        Method { preset: Some(preset), fire: preset.fire(ranks), group: preset.group(ranks), ranks }
    }

    /// Returns the same method with rounds that wait for all, so that it can be saved after them, unless it has such
    /// rounds.
    pub(super) fn saved_every(self, rounds: Option<u32>) -> Self {
        let fire = match rounds {
            Some(rounds) if !self.fire.is_synchronous() && !self.fire.has_full_rounds() => self.fire.full_every(rounds),
            _ => self.fire,
        };
        Method { fire, ..self }
    }

    /// Returns whether ranks average models instead of summing gradients.
    pub(super) fn averages_models(&self) -> bool {
        self.group.is_some()
    }

    /// Returns whether gradients are handed in layer by layer.
    pub(super) fn hands_in_layers(&self) -> bool {
        self.preset == Some(Preset::MgWfbp)
    }

    /// Returns the members of a group, if groups form by order of arrival.
    pub(super) fn arrivals(&self) -> Option<u32> {
        if let Some(Group::Arrivals(size)) = self.group { Some(size.min(self.ranks)) } else { None }
    }

    /// Returns whether ranks contribute models instead of updates of them.
    pub(super) fn holds_models(&self) -> bool {
        self.preset.is_some_and(|preset| preset.absent() == Absent::Hold)
    }

    /// Sets the choices of the method. Under a rule, gradients are divided as the task requires. A checkpoint has a
    /// model of its own.
    pub(super) fn choose<'w>(
        &self,
        builder: AllreduceBuilder<'w, f32>,
        (model, saved): (&'w [f32], Option<&'w Checkpoint>),
        scale: Scale,
    ) -> AllreduceBuilder<'w, f32> {
        let scale = self.preset.map_or(scale, Preset::scale);
        let builder = builder.fire(self.fire).scale(scale);
        let builder = if self.holds_models() { builder.absent(Absent::Hold) } else { builder };
        let builder = match self.group {
            Some(group) if saved.is_none() => builder.group(group).memory(model),
            Some(group) => builder.group(group),
            None => builder,
        };
        match saved {
            Some(saved) => builder.restore(saved),
            None => builder,
        }
    }

    /// Returns its name in tables.
    pub(super) fn label(&self) -> String {
        self.preset.map_or_else(|| self.fire.to_string(), |preset| preset.to_string())
    }

    pub(super) fn description(&self) -> &'static str {
        match self.fire.when() {
            _ if self.hands_in_layers() => "synchronous SGD, layer by layer",
            _ if self.arrivals().is_some() && self.holds_models() => "P-Reduce as published",
            _ if self.arrivals().is_some() => "P-Reduce with registers",
            _ if self.holds_models() => "WAGMA-SGD as published",
            _ if self.averages_models() => "WAGMA-SGD with registers",
            When::All if self.fire.is_synchronous() => "synchronous SGD",
            When::All => "SGD with a deadline",
            When::Solo => "eager-SGD solo",
            When::Majority(_) => "eager-SGD majority",
            When::Quorum(_) => "SGD with an exact quorum",
            When::Auto(_) => "SGD with a quorum that it chooses",
        }
    }
}
