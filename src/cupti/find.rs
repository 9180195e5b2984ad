//! Lists the files that may be a usable `libcupti`, in the order in which gpuflame tries them.
//!
//! NVIDIA installs CUPTI in folders that the dynamic linker does not search, and under names that differ from
//! `libcupti.so`. The search prefers the copy of CUPTI that belongs to the libraries that the process uses. The first
//! candidate is the copy that is already mapped. This copy comes first because PyTorch maps CUPTI at import, and two
//! copies must never be active. The next candidates are the copy that belongs to the mapped `libcudart`, and a copy in
//! the `site-packages` folder of the running Python. Other copies on the machine come last.
//!
//! The result of the search depends only on [`SearchEnvironment`] and on which files exist. Therefore tests can choose
//! both.

use std::fmt;
use std::path::{Path, PathBuf};

use gpuflame_model::sorting;

/// All inputs of the search, except the set of existing files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchEnvironment {
    /// The file that the user has named (`GPUFLAME_CUPTI`). If the user has named a file, gpuflame tries no other file.
    pub setting: Option<PathBuf>,
    /// Files that are mapped into this process.
    pub mapped: Vec<PathBuf>,
    /// Newest CUDA version that the driver supports, in the driver's encoding (12040 = 12.4).
    pub driver: Option<u32>,
    /// Root folders in which the running Python may be installed. A root folder contains `lib/python3.*/site-packages`.
    pub python: Vec<PathBuf>,
    /// Root folders of CUDA toolkits, with the preferred folders first.
    pub toolkits: Vec<PathBuf>,
    /// Folders that contain the system's libraries.
    pub system: Vec<PathBuf>,
}

/// A file that may be a usable CUPTI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Path of the file, or a bare name that the dynamic linker looks up.
    pub file: PathBuf,
    /// Reason why gpuflame tries this file.
    pub source: CandidateSource,
}

/// Reason why gpuflame tries a file as CUPTI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateSource {
    /// The user has named the file in `GPUFLAME_CUPTI`.
    Setting,
    /// The file is already mapped into this process. No second copy of CUPTI may be mapped.
    Mapped,
    /// The file is in the folder in which the CUPTI that belongs to the mapped `libcudart` is usually installed.
    NextToRuntime,
    /// The file is in a package of the Python that is running.
    SitePackages,
    /// A bare file name that the dynamic linker may be able to find.
    ByName,
    /// The file is in a CUDA toolkit.
    Toolkit,
    /// The file is in a folder that contains the system's libraries.
    System,
}

/// Result of a search for CUPTI: the files to try, and the folders that were searched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchResult {
    /// Files to try, in order of preference.
    pub candidates: Vec<Candidate>,
    /// Folders that were searched, including folders that do not exist.
    pub folders: Vec<PathBuf>,
}

/// A major release of CUPTI. The library's file name contains the number of the major release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MajorVersion(pub(super) u32);

impl MajorVersion {
    /// Oldest major release that gpuflame supports. The only supported version in this major release is 11.8. The file
    /// name of this version also contains the minor number.
    const OLDEST: Self = Self(11);
    /// Newest major release that this code knows. If the driver's version is unknown, this release is tried first.
    const NEWEST: Self = Self(13);

    /// Returns the file name of the library in this major release of CUPTI.
    pub(super) fn file(self) -> String {
        if self == Self::OLDEST { "libcupti.so.11.8".to_owned() } else { format!("libcupti.so.{}", self.0) }
    }

    /// Returns the name of the Python package that contains the library in this major release of CUPTI.
    pub(super) fn package(self) -> String {
        if self.0 >= 13 { "nvidia-cuda-cupti".to_owned() } else { format!("nvidia-cuda-cupti-cu{}", self.0) }
    }
}

impl SearchEnvironment {
    /// Returns the files to try, in order of preference.
    pub fn search(&self) -> SearchResult {
        let mut search = SearchResult::default();
        if let Some(file) = &self.setting {
            search.candidates.push(Candidate { file: file.clone(), source: CandidateSource::Setting });
            return search;
        }
        for file in self.mapped.iter().filter(|file| has_name(file, "libcupti.so")) {
            search.add(file.clone(), CandidateSource::Mapped);
        }
        let majors = self.majors();
        search.add_folders(self.runtime_folders(), &majors, CandidateSource::NextToRuntime);
        search.add_folders(self.site_packages(), &majors, CandidateSource::SitePackages);
        for major in &majors {
            search.add(major.file().into(), CandidateSource::ByName);
        }
        search.add_folders(
            self.toolkits.iter().flat_map(|root| toolkit_folders(root)),
            &majors,
            CandidateSource::Toolkit,
        );
        search.add_folders(self.system.iter().cloned(), &majors, CandidateSource::System);
        search
    }

    /// Returns the major releases that the driver can run, in order of preference. The release of the mapped CUDA
    /// runtime comes first, then the release of the driver, then all older releases.
    pub(super) fn majors(&self) -> Vec<MajorVersion> {
        let newest = self.driver.map_or(MajorVersion::NEWEST, |version| MajorVersion(version / 1000));
        let mut majors: Vec<_> = (MajorVersion::OLDEST.0..=newest.0).rev().map(MajorVersion).collect();
        let runtimes = self.runtimes().filter_map(|file| parse_major_version(file));
        if let Some(at) = runtimes.last().and_then(|runtime| majors.iter().position(|m| *m == runtime)) {
            let runtime = majors.remove(at);
            majors.insert(0, runtime);
        }
        majors
    }

    fn runtimes(&self) -> impl Iterator<Item = &PathBuf> {
        self.mapped.iter().filter(|file| has_name(file, "libcudart.so"))
    }

    /// Returns the folders in which pip packages and toolkits install CUPTI. The folders are found relative to the
    /// folder of the mapped `libcudart`.
    fn runtime_folders(&self) -> impl Iterator<Item = PathBuf> {
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

    /// Returns the folders in NVIDIA's Python packages that contain libraries. Searches each `site-packages` folder
    /// from which the process has mapped files, and the `site-packages` folders of the Python that runs the process.
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

impl SearchResult {
    fn add_folders(
        &mut self,
        folders: impl IntoIterator<Item = PathBuf>,
        majors: &[MajorVersion],
        source: CandidateSource,
    ) {
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

    fn add(&mut self, file: PathBuf, source: CandidateSource) {
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

/// Whether the name of `file` is `stem`, or `stem.` followed by a version number.
fn has_name(file: &Path, stem: &str) -> bool {
    let name = file.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.strip_prefix(stem)).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the number of the major release in a file name such as `libcudart.so.12` or `libcudart.so.11.0`.
fn parse_major_version(file: &Path) -> Option<MajorVersion> {
    let (_, version) = file.file_name()?.to_str()?.split_once(".so.")?;
    version.split('.').next()?.parse().ok().map(MajorVersion)
}

fn toolkit_folders(root: &Path) -> [PathBuf; 4] {
    let target = format!("targets/{}-linux/lib", std::env::consts::ARCH);
    [root.join("extras/CUPTI/lib64"), root.join("lib64"), root.join("lib"), root.join(target)]
}

/// Returns the `site-packages` folders of a Python installation, newest Python first.
fn python_packages(root: &Path) -> Vec<PathBuf> {
    list_entries(&root.join("lib"), "python3").into_iter().map(|lib| lib.join("site-packages")).collect()
}

/// Returns the entries in `folder` whose names begin with `prefix`, sorted by the numbers in their names, highest
/// first.
pub(super) fn list_entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(listing) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<_> = listing
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    sorting::sort_by_key(&mut found, |path| std::cmp::Reverse(version_numbers(path)));
    found
}

/// Returns the numbers that are contained in the last component of a path. With this order, 12.10 comes after 12.9.
fn version_numbers(path: &Path) -> Vec<u32> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
#[path = "find_test.rs"]
mod tests;
