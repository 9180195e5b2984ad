//! Builds profiles by hand, for tests of formats.

use gpuflame_model::profile::views::GPU;
use gpuflame_model::profile::{
    DeviceUse, Leaf, Profile, Sample, SampleSite, ShownFrame, ShownFrameKind, SourceLocation, View, Weight,
    WorkStats,
};
use gpuflame_model::record::{ContextFlags, ContextId, DeviceId, Loss, NameId, Row, ThreadId, Work};

use super::{Format, Options};

/// A builder for the profile of a test.
#[derive(Default)]
pub struct Sketch {
    pub profile: Profile,
    pub samples: Vec<Sample>,
    pub works: Vec<WorkStats>,
    pub devices: Vec<u32>,
}

impl Sketch {
    /// Creates a profile of one device with the kernels `gemm` (id 1) and `relu` (id 2).
    pub fn new() -> Self {
        let mut sketch = Self { devices: vec![0], ..Self::default() };
        sketch.profile.push(&Row::Name { id: NameId(1), text: "gemm" });
        sketch.profile.push(&Row::Name { id: NameId(2), text: "relu" });
        sketch
    }

    /// Adds a launch context whose stack is shown as `stack`, root first.
    pub fn context(&mut self, id: u32, flags: u32, stack: &[&str]) -> &mut Self {
        let (id, flags) = (ContextId(id), ContextFlags(flags));
        self.profile.push(&Row::Context { id, thread: ThreadId(1), flags, frames: &[] });
        let frames: Vec<_> = stack
            .iter()
            .map(|name| {
                let frame = ShownFrame::new(ShownFrameKind::Code, self.profile.intern(name));
                self.profile.intern_shown(frame)
            })
            .collect();
        self.profile.set_shown(id, frames);
        self
    }

    /// Adds a launch context whose stack is the function `decode` at the line `line` of `file`.
    pub fn located(&mut self, id: u32, file: &str, line: u32) -> &mut Self {
        self.context(id, 0, &[]);
        let profile = &mut self.profile;
        let source = Some(SourceLocation { file: profile.intern(file), line });
        let module = Some(profile.intern("/opt/app"));
        let frame =
            ShownFrame { source, module, ..ShownFrame::new(ShownFrameKind::Code, profile.intern("decode")) };
        let frame = profile.intern_shown(frame);
        profile.set_shown(ContextId(id), [frame]);
        self
    }

    pub fn sample(
        &mut self,
        site: SampleSite,
        leaf: Leaf,
        device: Option<u32>,
        count: u64,
        nanos: u64,
    ) -> &mut Self {
        let (device, values) = (device.map(DeviceId), [nanos, count, 0, 0]);
        self.samples.push(Sample { device, values, ..Sample::new(site, leaf) });
        self
    }

    pub fn ran(&mut self, context: u32, work: Work, count: u64, nanos: u64) -> &mut Self {
        self.sample(SampleSite::Context(ContextId(context)), Leaf::work(work), Some(0), count, nanos)
    }

    pub fn stats(&mut self, work: Work, device: u32, count: u64, nanos: u64, bytes: u64) -> &mut Self {
        let weight = Weight { count, nanos, bytes };
        let device = DeviceId(device);
        self.works.push(WorkStats { work, device, weight, min: 1, max: 9, percentiles: [4, 8, 9] });
        self
    }

    pub fn lost(&mut self, loss: Loss, count: u64) -> &mut Self {
        self.profile.push(&Row::Loss { loss, count });
        self
    }

    pub fn done(&mut self) -> Profile {
        let nanos = self.samples.iter().map(Sample::amount).sum();
        let usage = |&device: &u32| DeviceUse { device: DeviceId(device), count: 7, nanos };
        let mut profile = self.profile.clone();
        profile.set_samples(&GPU, self.samples.clone());
        profile.set_works(self.works.clone(), self.devices.iter().map(usage).collect());
        profile
    }
}

pub const GEMM: Work = Work::Kernel(NameId(1));
pub const RELU: Work = Work::Kernel(NameId(2));

pub fn drawn(format: &Format, profile: &Profile, view: &View, options: &Options) -> String {
    let mut out = Vec::new();
    format.draw(profile, view, options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}
