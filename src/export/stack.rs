//! The names of a stack, for the exporters that do not draw a flame.

use std::borrow::Cow;

use crate::profile::{Place, Profile};
use crate::record::{ContextId, Frame, FrameKind, Missing};

/// The frames of `place`, root first: its names if it has any, else addresses. What is missing from the
/// stack, or is there instead of it, is a frame too.
pub fn stack_names(profile: &Profile, place: Place) -> Vec<Cow<'_, str>> {
    let context = match place {
        Place::Context(context) => context,
        Place::Missing(missing) => return vec![missing.label().into()],
    };
    let Some(known) = profile.context(context) else { return vec![Missing::NoStack.label().into()] };
    let mut names = names_leaf_first(profile, context);
    names.extend(known.flags.label().map(Cow::from));
    names.reverse();
    names
}

fn names_leaf_first(profile: &Profile, context: ContextId) -> Vec<Cow<'_, str>> {
    if let Some(shown) = profile.shown(context) {
        return profile.shown_names(shown).map(|name| profile.strings().get(name).into()).collect();
    }
    let Some(context) = profile.context(context) else { return Vec::new() };
    let frames = profile.stack(context.stack).map(|frame| profile.frames()[frame.index()]);
    frames.map(|frame| raw_name(profile, frame)).collect()
}

/// What a frame is called that nobody gave a name.
pub(super) fn raw_name(profile: &Profile, frame: Frame) -> Cow<'_, str> {
    match frame.kind() {
        FrameKind::Native { address, .. } => format!("0x{address:x}").into(),
        FrameKind::Label(label) => profile.label(label).unwrap_or("[label lost]").into(),
        FrameKind::Unknown(tag) => format!("[frame of unknown kind: {tag}]").into(),
    }
}
