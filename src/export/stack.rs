//! The names of a stack, for the exporters that do not draw a flame.

use std::borrow::Cow;

#[cfg(feature = "cli")]
use crate::events::Event;
use crate::profile::{Place, Profile};
use crate::record::{ContextId, Created, Frame, FrameKind, Missing};

/// The frames of `place`, root first: its names if it has any, else addresses. What is missing from the
/// stack, or is there instead of it, is a frame too.
pub fn stack_names(profile: &Profile, place: Place) -> Vec<Cow<'_, str>> {
    match place {
        Place::Context(context) => context_names(profile, context),
        Place::Missing(missing) => vec![missing.label().into()],
        Place::Node { launch, created } => {
            let mut names = launch.map_or_else(
                |missing| vec![missing.label().into()],
                |context| context_names(profile, context),
            );
            let made = creation_names(profile, created);
            let shared = names.iter().zip(&made).take_while(|(a, b)| a == b).count();
            names.push(GRAPH.into());
            names.extend(made.into_iter().skip(shared));
            names
        }
    }
}

/// What an activity hangs under.
#[cfg(feature = "cli")]
pub fn event_place(event: &Event) -> Place {
    let launch = event.origin.context();
    match (event.activity.created, launch) {
        (Some(created), launch) => Place::Node { launch, created },
        (None, Ok(context)) => Place::Context(context),
        (None, Err(missing)) => Place::Missing(missing),
    }
}

/// Stands between the launch of a graph and where its node was made.
pub(super) const GRAPH: &str = "[graph]";

fn creation_names(profile: &Profile, created: Created) -> Vec<Cow<'_, str>> {
    match created {
        Created::Context(context) if profile.context(context).is_some() => context_names(profile, context),
        Created::Context(_) => Created::Unknown.label().into_iter().map(Cow::from).collect(),
        other => other.label().into_iter().map(Cow::from).collect(),
    }
}

fn context_names(profile: &Profile, context: ContextId) -> Vec<Cow<'_, str>> {
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
        FrameKind::Range(range) => profile.range(range).unwrap_or("[range]").into(),
        FrameKind::Unknown(tag) => format!("[frame of unknown kind: {tag}]").into(),
    }
}
