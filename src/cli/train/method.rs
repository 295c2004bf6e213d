//! What one training run does otherwise than another.

use earlybird::{Absent, AllreduceBuilder, Fire, Group, Preset, Scale, When};

/// A firing rule over gradients, or a preset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Method {
    pub(super) preset: Option<Preset>,
    pub(super) fire: Fire,
    /// Which ranks average models, if they do not sum gradients.
    group: Option<Group>,
}

impl Method {
    pub(super) fn of_rule(fire: Fire) -> Self {
        Method { preset: None, fire, group: None }
    }

    pub(super) fn of_preset(preset: Preset, ranks: u32) -> Self {
        Method { preset: Some(preset), fire: preset.fire(ranks), group: preset.group(ranks) }
    }

    /// Whether ranks average models, and do not sum gradients.
    pub(super) fn averages_models(&self) -> bool {
        self.group.is_some()
    }

    /// Whether ranks contribute models, and not updates of them.
    pub(super) fn holds_models(&self) -> bool {
        self.preset.is_some_and(|preset| preset.absent() == Absent::Hold)
    }

    /// Makes the choices of the method; under a rule, gradients are divided as the task does.
    pub(super) fn choose<'w>(
        &self,
        builder: AllreduceBuilder<'w, f32>,
        model: &'w [f32],
        scale: Scale,
    ) -> AllreduceBuilder<'w, f32> {
        let scale = self.preset.map_or(scale, Preset::scale);
        let builder = builder.fire(self.fire).scale(scale);
        let builder = if self.holds_models() { builder.absent(Absent::Hold) } else { builder };
        match self.group {
            Some(group) => builder.group(group).memory(model),
            None => builder,
        }
    }

    /// Its name in tables.
    pub(super) fn label(&self) -> String {
        self.preset.map_or_else(|| self.fire.to_string(), |preset| preset.to_string())
    }

    pub(super) fn description(&self) -> &'static str {
        match self.fire.when() {
            _ if self.holds_models() => "WAGMA-SGD as published",
            _ if self.averages_models() => "WAGMA-SGD with registers",
            When::All if self.fire.is_synchronous() => "synchronous SGD",
            When::All => "SGD with a deadline",
            When::Solo => "eager-SGD solo",
            When::Majority(_) => "eager-SGD majority",
            When::Quorum(_) => "SGD with an exact quorum",
        }
    }
}
