//! Finds the names of functions that a process generated at run time (for example with a JIT compiler). The code of
//! such functions is not in any file, but the code generator may write the functions' names and addresses to a file.
//! Two formats of `perf` are read: `/tmp/perf-PID.map` with one line per function, and jitdump.
//!
//! Files of both formats may contain any bytes, and every user of the machine may create files in the folders where
//! these files are. So a file is opened only if it is a regular file that belongs to the process's user or to root. A
//! file is never opened through a symbolic link, or with a call that could block. The amount of data that is read is
//! limited, and only entries for addresses in recorded stacks are kept. Neither format records how long a function
//! stayed at its address. So if several functions were at an address one after another, the address gets no name.

mod dump;
mod map;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use super::files::is_generated;
use super::modules::ModuleIndex;
use gpuflame_model::profile::Profile;
use gpuflame_model::record::FrameKind;
use gpuflame_model::sorting;

/// Maximum number of bytes that are read from a map. This number of bytes is enough for a million functions.
const MAX_MAP_BYTES: u64 = 64 << 20;
/// Maximum number of records that are read from a jitdump. Most bytes of a jitdump are machine code, which is skipped.
const MAX_DUMP_RECORDS: usize = 1 << 20;
/// Maximum number of matches between a function in the files and a requested address. A file exceeds this limit only if
/// thousands of functions overlap in it, as in a hostile file.
const MAX_MATCHES: usize = 1 << 20;
/// Maximum length of a function name in bytes. Longer names are truncated.
const MAX_NAME_BYTES: usize = 1 << 10;

/// Paths of the files that may contain names of generated functions. Files that do not exist are ignored.
#[derive(Clone, Debug, Default)]
pub struct GeneratedCodeSources {
    /// Paths of maps in `perf`'s format.
    pub maps: Vec<PathBuf>,
    /// Paths of jitdumps.
    pub dumps: Vec<PathBuf>,
    /// Id of the user who must own each file. Files that root owns are also read.
    pub user: u32,
}

/// Names of generated functions that were found in the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GeneratedNames {
    /// Maps each address to the name of the function that contains the address.
    pub names: Vec<(u64, String)>,
    /// Addresses that belonged to several functions one after another. Addresses that belonged to several functions
    /// have no name.
    pub several: Vec<u64>,
    /// Remarks about the maps and jitdumps, one sentence each.
    pub remarks: Vec<String>,
}

/// Returns the addresses of those frames in the profile whose code is in no file. The first `known` frames of the
/// profile are skipped.
pub fn generated_addresses(profile: &Profile, known: usize) -> BTreeSet<u64> {
    let modules = profile.modules();
    let map = ModuleIndex::new(modules);
    let address = |frame: &gpuflame_model::record::Frame| match frame.kind() {
        FrameKind::Native { address, epoch } => {
            let module = map.find(address, epoch);
            let is_nowhere =
                module.map_or(!frame.is_of_unknown_module(), |at| is_generated(&modules[at].path));
            is_nowhere.then_some(address)
        }
        _ => None,
    };
    sorting::into_set(profile.frames().iter().skip(known).filter_map(address))
}

impl GeneratedCodeSources {
    /// Returns the names of the functions at `addresses`.
    pub fn find_names(&self, addresses: &BTreeSet<u64>) -> GeneratedNames {
        let mut answers = Answers::new(addresses);
        let mut remarks = Vec::new();
        let maps = self.maps.iter().map(|path| (path, map::read as ReadSource));
        for (path, read) in maps.chain(self.dumps.iter().map(|path| (path, dump::read as ReadSource))) {
            if let Err(why) = self.read(path, read, &mut answers) {
                remarks.push(format!("{}: {why}", path.display()));
            }
        }
        let several = answers.several();
        if !several.is_empty() {
            remarks.push(format!(
                "addresses of generated code without a name, because several functions used them in turn: {}",
                several.len()
            ));
        }
        GeneratedNames { names: answers.names(), several, remarks }
    }

    fn read(&self, path: &Path, read: ReadSource, answers: &mut Answers) -> Result<(), String> {
        let Some(file) = open(path, self.user)? else { return Ok(()) };
        match read(&mut BufReader::new(file), answers) {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err("the file exceeds the limits; the rest of the generated code has no names".to_owned())
            }
            Err(error) => Err(format!("reading stopped: {error}")),
        }
    }
}

/// Type of a function that reads a map or jitdump and passes its entries to `Answers`. The function returns false if it
/// reached a limit before the end of the file.
type ReadSource = fn(&mut BufReader<File>, &mut Answers) -> io::Result<bool>;

/// Opens a map or jitdump. Returns `None` if the file does not exist. If the file must not be opened, returns the
/// reason as an error.
#[cfg(unix)]
fn open(path: &Path, user: u32) -> Result<Option<File>, String> {
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

    // Without `O_NONBLOCK`, opening a pipe that has no writer would block.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    // Opening some devices has side effects, so the type of the file is checked before the file is opened. The type is
    // checked again after opening, because a different file may have been put at this path before the file was opened.
    let is_there = path.symlink_metadata().and_then(|metadata| {
        if !metadata.is_file() {
            return Ok(None);
        }
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        Ok(metadata.is_file().then_some((file, metadata.uid())))
    });
    match is_there {
        Ok(Some((file, owner))) if owner == user || owner == 0 => Ok(Some(file)),
        Ok(Some(_)) => Err("not read, because it belongs to another user".to_owned()),
        Ok(None) => Err("not read, because it is not a regular file".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot be read: {error}")),
    }
}

/// On operating systems other than Unix, no file is opened, because the owner of a file cannot be checked.
#[cfg(not(unix))]
fn open(path: &Path, _: u32) -> Result<Option<File>, String> {
    match path.exists() {
        true => Err("not read, because its owner cannot be checked on this system".to_owned()),
        false => Ok(None),
    }
}

/// The names that were found so far for the requested addresses.
struct Answers {
    /// Requested addresses, in ascending order.
    addresses: Vec<u64>,
    /// The answer for each address, in the order of `addresses`.
    answers: Vec<Answer>,
    count: usize,
}

#[derive(Clone, Debug)]
enum Answer {
    None,
    One(Box<str>),
    Several,
}

impl Answers {
    fn new(addresses: &BTreeSet<u64>) -> Self {
        let addresses: Vec<u64> = addresses.iter().copied().collect();
        Self { answers: vec![Answer::None; addresses.len()], addresses, count: 0 }
    }

    /// Processes a function of `size` bytes at `start`. Returns false if the limit on the number of matches was
    /// reached.
    fn add_function(&mut self, start: u64, size: u64, name: &[u8]) -> bool {
        let Some(end) = start.checked_add(size) else { return true };
        let first = self.addresses.partition_point(|&address| address < start);
        let inside = self.addresses[first..].iter().take_while(|&&address| address < end).count();
        if inside == 0 || name.is_empty() {
            return true;
        }
        self.count = self.count.saturating_add(inside);
        if self.count > MAX_MATCHES {
            return false;
        }
        let name = text(name);
        for answer in &mut self.answers[first..first + inside] {
            match answer {
                Answer::None => *answer = Answer::One(name.as_str().into()),
                Answer::One(known) if **known != *name => *answer = Answer::Several,
                _ => {}
            }
        }
        true
    }

    /// Whether any requested address is inside the `size` bytes at `start`.
    fn is_requested(&self, start: u64, size: u64) -> bool {
        let first = self.addresses.partition_point(|&address| address < start);
        self.addresses.get(first).is_some_and(|&address| address - start < size)
    }

    /// Returns the addresses that belonged to several functions one after another.
    fn several(&self) -> Vec<u64> {
        let all = self.addresses.iter().zip(&self.answers);
        all.filter(|(_, answer)| matches!(answer, Answer::Several)).map(|(address, _)| *address).collect()
    }

    fn names(self) -> Vec<(u64, String)> {
        let named = |(address, answer)| match answer {
            Answer::One(name) => Some((address, String::from(name))),
            _ => None,
        };
        self.addresses.into_iter().zip(self.answers).filter_map(named).collect()
    }
}

/// Decodes the name of a function, which may consist of any bytes.
fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(MAX_NAME_BYTES)]).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::process::Command;

    use super::*;

    /// A temporary folder that is removed at the end of the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("gpuflame-generated-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        /// Writes a map with the content `map`, and returns the names that were found for `addresses`.
        fn find_names(&self, map: impl AsRef<[u8]>, addresses: &[u64]) -> GeneratedNames {
            let path = self.0.join("map");
            fs::write(&path, map).unwrap();
            self.sources(&path).find_names(&addresses.iter().copied().collect())
        }

        fn sources(&self, map: &Path) -> GeneratedCodeSources {
            let user = self.0.metadata().unwrap().uid();
            GeneratedCodeSources { maps: vec![map.to_owned()], user, ..GeneratedCodeSources::default() }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // The test must not fail if the folder cannot be removed from /tmp.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn names(generated: &GeneratedNames) -> Vec<(u64, &str)> {
        generated.names.iter().map(|(address, name)| (*address, name.as_str())).collect()
    }

    #[test]
    fn an_address_belongs_to_the_function_around_it() {
        let folder = Folder::new("map");
        let map = "1000 10 first\n1010 8 two words\n0x2000 0x20 third\r\n";
        let found = folder.find_names(map, &[0xfff, 0x1000, 0x100f, 0x1010, 0x1018, 0x201f, 0x2020]);
        let expected = [(0x1000, "first"), (0x100f, "first"), (0x1010, "two words"), (0x201f, "third")];
        assert_eq!(names(&found), expected);
        assert_eq!(found.remarks, [""; 0]);
    }

    #[test]
    fn an_address_used_by_several_functions_has_no_name() {
        let folder = Folder::new("several");
        let found = folder.find_names("1000 10 old\n1008 10 new\n1000 4 old\n", &[0x1000, 0x1008, 0x1010]);
        assert_eq!(names(&found), [(0x1000, "old"), (0x1010, "new")]);
        assert_eq!(
            found.remarks,
            ["addresses of generated code without a name, because several functions used them in turn: 1"]
        );
    }

    #[test]
    fn malformed_map_lines_are_skipped() {
        let folder = Folder::new("lines");
        let long = "x".repeat(100_000);
        let map = [
            b"\n\n \n1000\n1000 \n1000 10\n1000 10 \n1000 0 empty\n-1000 10 negative\n1000 -10 negative\n"
                .to_vec(),
            b"zzzz 10 nothing\nffffffffffffffff 10 beyond\n1000 fffffffffffffffff more than fits\n".to_vec(),
            b"\0\0\0\xff\xfe\n1000 10 \xff\xfename\n".to_vec(),
            format!("2000 10 {long}\n3000 10 behind\n{long}{long}\n4000 10 without an end").into_bytes(),
        ]
        .concat();
        let found = folder.find_names(map, &[0x1000, 0x2000, 0x3000, 0x4000, u64::MAX]);
        let (replaced, cut) = ("\u{fffd}\u{fffd}name", "x".repeat(1024));
        let expected =
            [(0x1000, replaced), (0x2000, cut.as_str()), (0x3000, "behind"), (0x4000, "without an end")];
        assert_eq!(names(&found), expected);
        assert_eq!(found.remarks, [""; 0]);
    }

    #[test]
    fn an_oversized_map_is_read_up_to_a_limit() {
        let folder = Folder::new("huge");
        let path = folder.0.join("huge");
        fs::write(&path, "1000 10 first\n").unwrap();
        // Make a sparse file, which is large but takes no disk space.
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        let found = folder.sources(&path).find_names(&[0x1000].into());
        assert_eq!(names(&found), [(0x1000, "first")]);
        assert!(
            found.remarks[0]
                .ends_with("the file exceeds the limits; the rest of the generated code has no names")
        );
    }

    /// Requests 2,000 addresses, and writes 10,000 lines that each cover all of these addresses.
    #[test]
    fn overlapping_map_lines_are_processed_up_to_a_limit() {
        let folder = Folder::new("overlap");
        let addresses: Vec<u64> = (0..2000).collect();
        let found = folder.find_names("0 ffff f\n".repeat(10_000), &addresses);
        assert_eq!(found.names.len(), 2000);
        assert_eq!(found.remarks.len(), 1);
    }

    #[test]
    fn a_map_that_is_not_the_users_regular_file_is_not_read() {
        let folder = Folder::new("hostile");
        let path = folder.0.join("hostile");
        let ask = |user: Option<u32>| {
            let mut sources = folder.sources(&path);
            sources.user = user.unwrap_or(sources.user);
            let GeneratedNames { names, remarks, .. } = sources.find_names(&[0x1000].into());
            fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).unwrap();
            assert_eq!(names, []);
            let [remark] = &remarks[..] else { panic!("{remarks:?}") };
            remark.split_once(": ").unwrap().1.to_owned()
        };
        let no_plain_file = "not read, because it is not a regular file";
        for device in ["/dev/zero", "/dev/tty", "/etc/passwd", "/nowhere"] {
            symlink(device, &path).unwrap();
            assert_eq!(ask(None), no_plain_file, "{device}");
        }
        // Opening this pipe would block forever, because no process writes to it.
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_eq!(ask(None), no_plain_file);
        fs::create_dir(&path).unwrap();
        assert_eq!(ask(None), no_plain_file);
        assert_eq!(
            folder.sources(&path).find_names(&[0x1000].into()),
            GeneratedNames::default(),
            "no file is there"
        );
        fs::write(&path, "1000 10 first\n").unwrap();
        let owner = path.metadata().unwrap().uid();
        if owner == 0 && Command::new("chown").arg("65534").arg(&path).status().unwrap().success() {
            assert_eq!(ask(None), "not read, because it belongs to another user");
        } else if owner != 0 {
            assert_eq!(ask(Some(owner + 1)), "not read, because it belongs to another user");
        }
    }

    /// The Linux source describes the format in `tools/perf/Documentation/jitdump-specification.txt`.
    #[test]
    fn a_jitdump_names_its_functions() {
        let folder = Folder::new("dump");
        let path = folder.0.join("jit-1.dump");
        let head = |magic: u32| {
            let words = [magic, 1, 40, 62, 0, 1, 0, 0, 0, 0];
            words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>()
        };
        let record = |id: u32, rest: &[u8]| {
            let size = 16 + rest.len() as u32;
            [&id.to_ne_bytes()[..], &size.to_ne_bytes(), &[0; 8], rest].concat()
        };
        let load = |at: u64, size: u64, name: &str| {
            let index = at >> 12;
            let numbers = [at, at, size, index].map(u64::to_ne_bytes).concat();
            let code = vec![0xcc; size as usize];
            record(0, &[&[0; 8][..], &numbers, name.as_bytes(), &[0], &code].concat())
        };
        let whole = [
            head(0x4A69_5444),
            load(0x1000, 0x10, "py::f:/a b.py"),
            // Add a record about source lines, and a record of an unknown kind.
            record(2, &[1; 100]),
            record(99, &[]),
            load(0x2000, 0x5000, "g"),
        ]
        .concat();
        let moved = |index: u64, from: u64, to: u64, size: u64| {
            record(1, &[&[0; 8][..], &[to, from, to, size, index].map(u64::to_ne_bytes).concat()].concat())
        };
        let ask = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let sources =
                GeneratedCodeSources { maps: Vec::new(), dumps: vec![path.clone()], ..folder.sources(&path) };
            sources.find_names(&[0x1008, 0x6fff, 0x7000].into())
        };
        let found = ask(&whole);
        assert_eq!(names(&found), [(0x1008, "py::f:/a b.py"), (0x6fff, "g")]);
        assert_eq!(found.remarks, [""; 0]);
        // Truncate the jitdump at every byte, as if the process had been killed at that point. The result must never
        // contain a wrong name.
        for length in 0..40 + 16 + 80 {
            assert!(
                names(&ask(&whole[..length])).iter().all(|name| *name == (0x1008, "py::f:/a b.py")),
                "{length}"
            );
        }
        // The first function moves twice. The first function's second move is to the address of the second function. A
        // record about a move is matched to its function by the function's index alone.
        let moves = [
            moved(1, 0x1000, 0x9000, 0x10),
            moved(1, 0x9000, 0x6ff8, 0x10),
            moved(3, 0x3000, 0x6ff8, 0x10),
            moved(2, 0x2000, 0x7000, 0x5000),
        ];
        let found = ask(&[&whole[..], &moves.concat()].concat());
        assert_eq!(names(&found), [(0x1008, "py::f:/a b.py")]);
        assert_eq!(found.several, [0x6fff, 0x7000]);
        let found = ask(&[&whole[..], &moves[3]].concat());
        assert_eq!(names(&found), [(0x1008, "py::f:/a b.py"), (0x6fff, "g"), (0x7000, "g")]);
        let other = [head(0x4454_694A), load(0x1000, 0x10, "f")].concat();
        assert_eq!(ask(&other).names, [], "the dump has the other byte order");
        // If a record claims to be shorter than its own header, the reader must not loop forever.
        let stuck = [head(0x4A69_5444), record(0, &[])[..4].to_vec(), vec![0; 12], load(0x1000, 0x10, "f")];
        assert_eq!(ask(&stuck.concat()).names, []);
    }
}
