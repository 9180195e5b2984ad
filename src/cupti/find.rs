//! Where a `libcupti` may lie, in the order in which to try.
//!
//! NVIDIA puts it into no folder that the dynamic linker knows, under names without a plain
//! `libcupti.so`. The rule is to use the copy that suits what the process runs already: the one that
//! is mapped (PyTorch maps it at import, and two copies must never be active), the one beside the mapped
//! `libcudart`, one in the `site-packages` of a running Python; only then whatever the machine has.
//!
//! [`Surroundings`] is all that the answer depends on, so that it can be made up.

use std::fmt;
use std::path::{Path, PathBuf};

/// What the search depends on, apart from which files exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// What the user named (`GPUFLAME_CUPTI`); then nothing else is tried.
    pub setting: Option<PathBuf>,
    /// The files mapped into this process.
    pub mapped: Vec<PathBuf>,
    /// The newest CUDA that the driver supports, in its own numbers (12040 = 12.4).
    pub driver: Option<u32>,
    /// Where a running Python may be installed: folders with `lib/python3.*/site-packages`.
    pub python: Vec<PathBuf>,
    /// CUDA toolkits, best first.
    pub toolkits: Vec<PathBuf>,
    /// Folders of the system's libraries.
    pub system: Vec<PathBuf>,
}

/// A file to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its path, or a bare name for the dynamic linker.
    pub file: PathBuf,
    /// Why it is tried.
    pub source: Source,
}

/// Why a file is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The user said so.
    Setting,
    /// It is mapped already, and must not be mapped a second time from elsewhere.
    Mapped,
    /// It lies where it belongs to the mapped `libcudart`.
    BesideRuntime,
    /// It lies among the packages of a running Python.
    SitePackages,
    /// The dynamic linker may know it by name.
    ByName,
    /// It lies in a CUDA toolkit.
    Toolkit,
    /// It lies among the system's libraries.
    System,
}

/// The answer: what to try, and where was looked for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// What to try, best first.
    pub candidates: Vec<Candidate>,
    /// The folders that were looked into, whether or not they exist.
    pub folders: Vec<PathBuf>,
}

/// A major release of CUPTI, by which its file is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Major(pub(super) u32);

impl Major {
    /// The oldest that gpuflame reads; of it only 11.8, which has the minor number in its name.
    const OLDEST: Self = Self(11);
    /// The newest there was when this was written; tried first where the driver does not say.
    const NEWEST: Self = Self(13);

    /// What the file is called.
    pub(super) fn file(self) -> String {
        if self == Self::OLDEST { "libcupti.so.11.8".to_owned() } else { format!("libcupti.so.{}", self.0) }
    }

    /// What the Python package with it is called.
    pub(super) fn package(self) -> String {
        if self.0 >= 13 { "nvidia-cuda-cupti".to_owned() } else { format!("nvidia-cuda-cupti-cu{}", self.0) }
    }
}

impl Surroundings {
    /// What to try, best first.
    pub fn search(&self) -> Search {
        let mut search = Search::default();
        if let Some(file) = &self.setting {
            search.candidates.push(Candidate { file: file.clone(), source: Source::Setting });
            return search;
        }
        for file in self.mapped.iter().filter(|file| has_name(file, "libcupti.so")) {
            search.add(file.clone(), Source::Mapped);
        }
        let majors = self.majors();
        search.look_into(self.beside_runtime(), &majors, Source::BesideRuntime);
        search.look_into(self.site_packages(), &majors, Source::SitePackages);
        for major in &majors {
            search.add(major.file().into(), Source::ByName);
        }
        search.look_into(
            self.toolkits.iter().flat_map(|root| toolkit_folders(root)),
            &majors,
            Source::Toolkit,
        );
        search.look_into(self.system.iter().cloned(), &majors, Source::System);
        search
    }

    /// The majors that the driver can run, best first: that of the mapped runtime, then from the
    /// driver's own down.
    pub(super) fn majors(&self) -> Vec<Major> {
        let newest = self.driver.map_or(Major::NEWEST, |version| Major(version / 1000));
        let mut majors: Vec<_> = (Major::OLDEST.0..=newest.0).rev().map(Major).collect();
        let runtimes = self.runtimes().filter_map(|file| major_of(file));
        if let Some(at) = runtimes.last().and_then(|runtime| majors.iter().position(|m| *m == runtime)) {
            let runtime = majors.remove(at);
            majors.insert(0, runtime);
        }
        majors
    }

    fn runtimes(&self) -> impl Iterator<Item = &PathBuf> {
        self.mapped.iter().filter(|file| has_name(file, "libcudart.so"))
    }

    /// Where pip's packages and toolkits keep CUPTI, seen from their `libcudart`.
    fn beside_runtime(&self) -> impl Iterator<Item = PathBuf> {
        self.runtimes().filter_map(|file| file.parent()).flat_map(|folder| {
            let up = |levels: usize| folder.ancestors().nth(levels).unwrap_or(folder);
            [
                folder.to_owned(),
                up(2).join("cuda_cupti/lib"),
                up(1).join("extras/CUPTI/lib64"),
                up(3).join("extras/CUPTI/lib64"),
            ]
        })
    }

    /// The folders of NVIDIA's packages: among packages that the process has mapped files of, and in the
    /// places where its Python may keep them.
    fn site_packages(&self) -> Vec<PathBuf> {
        let mapped = self.mapped.iter().filter_map(|file| {
            file.ancestors()
                .find(|folder| folder.ends_with("site-packages") || folder.ends_with("dist-packages"))
        });
        let installed = self.python.iter().flat_map(|root| python_packages(root));
        let mut roots: Vec<PathBuf> = Vec::new();
        for root in mapped.map(Path::to_owned).chain(installed) {
            if !roots.contains(&root) {
                roots.push(root);
            }
        }
        let newest = |root: &PathBuf| -> Vec<PathBuf> {
            let by_major = self.majors().into_iter().map(|major| format!("nvidia/cu{}/lib", major.0));
            by_major.chain(["nvidia/cuda_cupti/lib".to_owned()]).map(|folder| root.join(folder)).collect()
        };
        roots.iter().flat_map(newest).collect()
    }
}

impl Search {
    fn look_into(&mut self, folders: impl IntoIterator<Item = PathBuf>, majors: &[Major], source: Source) {
        let folders: Vec<_> = folders.into_iter().filter(|folder| !self.folders.contains(folder)).collect();
        for major in majors {
            for folder in &folders {
                let file = folder.join(major.file());
                if file.is_file() {
                    self.add(file, source);
                }
            }
        }
        self.folders.extend(folders);
    }

    fn add(&mut self, file: PathBuf, source: Source) {
        if !self.candidates.iter().any(|known| known.file == file) {
            self.candidates.push(Candidate { file, source });
        }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.display().fmt(f)
    }
}

/// Whether the file is called `stem`, or `stem.` and a version.
fn has_name(file: &Path, stem: &str) -> bool {
    let name = file.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.strip_prefix(stem)).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The major in a name such as `libcudart.so.12` or `libcudart.so.11.0`.
fn major_of(file: &Path) -> Option<Major> {
    let (_, version) = file.file_name()?.to_str()?.split_once(".so.")?;
    version.split('.').next()?.parse().ok().map(Major)
}

fn toolkit_folders(root: &Path) -> [PathBuf; 4] {
    let target = format!("targets/{}-linux/lib", std::env::consts::ARCH);
    [root.join("extras/CUPTI/lib64"), root.join("lib64"), root.join("lib"), root.join(target)]
}

/// The package folders below a Python installation, newest Python first.
fn python_packages(root: &Path) -> Vec<PathBuf> {
    entries(&root.join("lib"), "python3").into_iter().map(|lib| lib.join("site-packages")).collect()
}

/// The entries of `folder` whose names begin with `prefix`, in falling order of the numbers in them.
pub(super) fn entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(listing) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<_> = listing
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    found.sort_by_cached_key(|path| std::cmp::Reverse(numbers(path)));
    found
}

/// The numbers in a path's last part, so that 12.10 comes after 12.9.
fn numbers(path: &Path) -> Vec<u32> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
#[path = "find_test.rs"]
mod tests;
