//! Colours of frames in pictures. The kind of a frame determines the colour, and its name the shade.

use inferno::flamegraph::color::{Color, PaletteMap};

use super::frame::Label;
use gpuflame_model::profile::{Cause, ShownFrameKind};
use gpuflame_model::record::hash_one;

/// Name of the bottom frame in `inferno`.
const BOTTOM_FRAME: &str = "";
const BOTTOM_COLOR: Color = Color { r: 205, g: 210, b: 205 };

/// Returns a palette that contains a colour for each frame in `labels`, and for merged frames with the names `merged`.
pub fn palette<'a>(labels: impl IntoIterator<Item = Label<'a>>, merged: &[&str]) -> PaletteMap {
    let mut colors = PaletteMap::default();
    for label in labels {
        colors.insert(label.name_first(), color(label.text, label.kind));
    }
    // If a frame has no entry in the palette, `inferno` gives it a random colour.
    colors.insert(BOTTOM_FRAME, BOTTOM_COLOR);
    merged.iter().for_each(|name| _ = colors.insert(*name, BOTTOM_COLOR));
    colors
}

/// Returns the colour of a frame: warm colours for kernels, yellow for graphs, blue for copies, purple for fills,
/// grey for anything missing, teal for ranges, pale blue for Python functions, and pale green for other CPU frames.
/// Idle time is orange if the host was late, yellow while a launch was in flight, and blue while work waited. The
/// name determines the shade, so that neighbouring frames can be distinguished.
fn color(name: &str, kind: ShownFrameKind) -> Color {
    let shade = |range: u64| (hash_one(name) >> 20) % range;
    let (r, g, b) = match kind {
        ShownFrameKind::Kernel => (235 + shade(20), 95 + shade(80), 50),
        ShownFrameKind::Copy | ShownFrameKind::Unified => (80 + shade(30), 140 + shade(40), 225),
        ShownFrameKind::Graph => (225 + shade(20), 185 + shade(20), 75),
        ShownFrameKind::Set => (165 + shade(25), 110 + shade(30), 215),
        ShownFrameKind::Idle(Cause::HostLate) => (235 + shade(15), 120 + shade(25), 40),
        ShownFrameKind::Idle(Cause::LaunchLatency) => (240 + shade(12), 190 + shade(20), 60),
        ShownFrameKind::Idle(Cause::Dependency) => (110 + shade(25), 150 + shade(30), 215),
        ShownFrameKind::Marker | ShownFrameKind::Loss | ShownFrameKind::Idle(Cause::Unknown) => {
            (165 + shade(12), 165 + shade(12), 165 + shade(12))
        }
        ShownFrameKind::Allocation => (225 + shade(20), 110 + shade(30), 60 + shade(20)),
        ShownFrameKind::Free => (120 + shade(25), 165 + shade(25), 215),
        ShownFrameKind::Root => (200 + shade(12), 190 + shade(12), 175 + shade(12)),
        ShownFrameKind::Range => (70 + shade(25), 165 + shade(25), 160 + shade(25)),
        ShownFrameKind::Python => (165 + shade(25), 190 + shade(20), 215 + shade(20)),
        ShownFrameKind::Code | ShownFrameKind::Call => (170 + shade(35), 205 + shade(20), 165 + shade(25)),
    };
    Color { r: r as u8, g: g as u8, b: b as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_functions_are_blue_and_native_functions_are_green() {
        for name in ["main", "forward (model.py:12)", ""] {
            let (python, code) = (color(name, ShownFrameKind::Python), color(name, ShownFrameKind::Code));
            assert!(python.b > python.g && python.g > python.r, "{python:?}");
            assert!(code.g > code.r && code.g > code.b, "{code:?}");
        }
    }
}
