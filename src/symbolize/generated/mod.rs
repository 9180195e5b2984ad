//! Functions that a process generated while it ran. No file holds them; whoever generates them writes down where they lie,
//! as `perf` has it: `/tmp/perf-PID.map`, a line a function, or a jitdump.
//!
//! Both may hold anything, and lie where everybody may make files. So only plain files of the process's own user (or root's)
//! are opened, never through a link and never one that has to be waited for; only so much is read, and kept only what is
//! said of addresses in stacks. Neither says until when a function lay where it did: an address that several had has no name.

mod dump;
mod map;

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::files::is_generated;
use super::modules::ModuleIndex;
use crate::profile::Profile;
use crate::record::FrameKind;

/// So much of a map is read: a million functions.
const MOST_BYTES: u64 = 64 << 20;
/// So many records of a dump are read; most of it is code, which is passed over.
const MOST_RECORDS: usize = 1 << 20;
/// So often an address may be spoken of: functions do not overlap by the thousand.
const MOST_ANSWERS: usize = 1 << 20;
/// So much is kept of a name.
const LONGEST_NAME: usize = 1 << 10;

/// Where names of generated code are written down. A file that is not there says nothing.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Files of `perf`'s maps.
    pub maps: Vec<PathBuf>,
    /// Files of jitdumps.
    pub dumps: Vec<PathBuf>,
    /// Whose they are to be; root's are believed as well.
    pub user: u32,
}

/// What the sources say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generated {
    /// The function that each address is in.
    pub names: Vec<(u64, String)>,
    /// The addresses that were in several, in turn.
    pub several: Vec<u64>,
    /// What is to be known of the sources, a sentence each.
    pub remarks: Vec<String>,
}

/// The addresses in stacks at which code lies that is in no file; of all frames but the first `known`.
pub fn generated_addresses(profile: &Profile, known: usize) -> BTreeSet<u64> {
    let modules = profile.modules();
    let map = ModuleIndex::new(modules);
    let address = |frame: &crate::record::Frame| match frame.kind() {
        FrameKind::Native { address, epoch } => {
            let module = map.find(address, epoch);
            let is_nowhere =
                module.map_or(!frame.is_of_unknown_module(), |at| is_generated(&modules[at].path));
            is_nowhere.then_some(address)
        }
        _ => None,
    };
    profile.frames().iter().skip(known).filter_map(address).collect()
}

impl Sources {
    /// The functions that are at `addresses`.
    pub fn ask(&self, addresses: &BTreeSet<u64>) -> Generated {
        let mut answers = Answers::to(addresses);
        let mut remarks = Vec::new();
        let maps = self.maps.iter().map(|path| (path, map::read as Read));
        for (path, read) in maps.chain(self.dumps.iter().map(|path| (path, dump::read as Read))) {
            if let Err(why) = self.read(path, read, &mut answers) {
                remarks.push(format!("{}: {why}", path.display()));
            }
        }
        let several = answers.several();
        if !several.is_empty() {
            remarks.push(format!(
                "addresses of generated code that had several functions in turn, and have no name: {}",
                several.len()
            ));
        }
        Generated { names: answers.names(), several, remarks }
    }

    fn read(&self, path: &Path, read: Read, answers: &mut Answers) -> Result<(), String> {
        let Some(file) = open(path, self.user)? else { return Ok(()) };
        match read(&mut BufReader::new(file), answers) {
            Ok(true) => Ok(()),
            Ok(false) => Err("it says more than is read; the rest of generated code has no name".to_owned()),
            Err(error) => Err(format!("it cannot be read any further: {error}")),
        }
    }
}

/// Tells `Answers` what a file says. False: that was not all of it.
type Read = fn(&mut BufReader<File>, &mut Answers) -> io::Result<bool>;

/// `None` if there is no such file; else the file, or why it is not opened.
fn open(path: &Path, user: u32) -> Result<Option<File>, String> {
    // A pipe without a writer would be waited for.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    // Some devices do something when they are opened: looked at before, and after, when nobody can change it any more.
    let is_there = path.symlink_metadata().and_then(|metadata| {
        if !metadata.is_file() {
            return Ok(None);
        }
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        Ok(metadata.is_file().then_some((file, metadata.uid())))
    });
    match is_there {
        Ok(Some((file, owner))) if owner == user || owner == 0 => Ok(Some(file)),
        Ok(Some(_)) => Err("it is not read, since it is another user's".to_owned()),
        Ok(None) => Err("it is not read, since it is no plain file".to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("it cannot be read: {error}")),
    }
}

/// What is said of each address that was asked for.
struct Answers {
    /// In their order.
    addresses: Vec<u64>,
    /// At the same position.
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
    fn to(addresses: &BTreeSet<u64>) -> Self {
        let addresses: Vec<u64> = addresses.iter().copied().collect();
        Self { answers: vec![Answer::None; addresses.len()], addresses, count: 0 }
    }

    /// A function lies from `start` on. False: too much is said.
    fn tell(&mut self, start: u64, size: u64, name: &[u8]) -> bool {
        let Some(end) = start.checked_add(size) else { return true };
        let first = self.addresses.partition_point(|&address| address < start);
        let inside = self.addresses[first..].iter().take_while(|&&address| address < end).count();
        if inside == 0 || name.is_empty() {
            return true;
        }
        self.count = self.count.saturating_add(inside);
        if self.count > MOST_ANSWERS {
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

    /// Whether anything from `start` on is asked for.
    fn is_asked(&self, start: u64, size: u64) -> bool {
        let first = self.addresses.partition_point(|&address| address < start);
        self.addresses.get(first).is_some_and(|&address| address - start < size)
    }

    /// The addresses that several functions were at.
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

/// A name that may be anything.
fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(LONGEST_NAME)]).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    /// A folder that goes away with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("gpuflame-generated-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        /// What a map of these bytes says of these addresses.
        fn ask(&self, map: impl AsRef<[u8]>, addresses: &[u64]) -> Generated {
            let path = self.0.join("map");
            fs::write(&path, map).unwrap();
            self.sources(&path).ask(&addresses.iter().copied().collect())
        }

        fn sources(&self, map: &Path) -> Sources {
            let user = self.0.metadata().unwrap().uid();
            Sources { maps: vec![map.to_owned()], user, ..Sources::default() }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // A folder left behind in /tmp is no reason to fail.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn names(generated: &Generated) -> Vec<(u64, &str)> {
        generated.names.iter().map(|(address, name)| (*address, name.as_str())).collect()
    }

    #[test]
    fn an_address_is_of_the_function_around_it() {
        let folder = Folder::new("map");
        let map = "1000 10 first\n1010 8 two words\n0x2000 0x20 third\r\n";
        let found = folder.ask(map, &[0xfff, 0x1000, 0x100f, 0x1010, 0x1018, 0x201f, 0x2020]);
        let expected = [(0x1000, "first"), (0x100f, "first"), (0x1010, "two words"), (0x201f, "third")];
        assert_eq!(names(&found), expected);
        assert_eq!(found.remarks, [""; 0]);
    }

    #[test]
    fn an_address_that_several_functions_had_has_no_name() {
        let folder = Folder::new("several");
        let found = folder.ask("1000 10 old\n1008 10 new\n1000 4 old\n", &[0x1000, 0x1008, 0x1010]);
        assert_eq!(names(&found), [(0x1000, "old"), (0x1010, "new")]);
        assert_eq!(
            found.remarks,
            ["addresses of generated code that had several functions in turn, and have no name: 1"]
        );
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
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
        let found = folder.ask(map, &[0x1000, 0x2000, 0x3000, 0x4000, u64::MAX]);
        let (replaced, cut) = ("\u{fffd}\u{fffd}name", "x".repeat(1024));
        let expected =
            [(0x1000, replaced), (0x2000, cut.as_str()), (0x3000, "behind"), (0x4000, "without an end")];
        assert_eq!(names(&found), expected);
        assert_eq!(found.remarks, [""; 0]);
    }

    #[test]
    fn of_a_map_without_an_end_only_so_much_is_read() {
        let folder = Folder::new("huge");
        let path = folder.0.join("huge");
        fs::write(&path, "1000 10 first\n").unwrap();
        // A hole: nothing is on the disk.
        OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        let found = folder.sources(&path).ask(&[0x1000].into());
        assert_eq!(names(&found), [(0x1000, "first")]);
        assert!(
            found.remarks[0].ends_with("it says more than is read; the rest of generated code has no name")
        );
    }

    /// 2,000 addresses, and 10,000 lines that each speak of all of them.
    #[test]
    fn lines_that_each_speak_of_everything_come_to_an_end() {
        let folder = Folder::new("overlap");
        let addresses: Vec<u64> = (0..2000).collect();
        let found = folder.ask("0 ffff f\n".repeat(10_000), &addresses);
        assert_eq!(found.names.len(), 2000);
        assert_eq!(found.remarks.len(), 1);
    }

    #[test]
    fn what_is_no_plain_file_of_the_user_s_is_not_opened() {
        let folder = Folder::new("hostile");
        let path = folder.0.join("hostile");
        let ask = |user: Option<u32>| {
            let mut sources = folder.sources(&path);
            sources.user = user.unwrap_or(sources.user);
            let Generated { names, remarks, .. } = sources.ask(&[0x1000].into());
            fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).unwrap();
            assert_eq!(names, []);
            let [remark] = &remarks[..] else { panic!("{remarks:?}") };
            remark.split_once(": ").unwrap().1.to_owned()
        };
        let no_plain_file = "it is not read, since it is no plain file";
        for device in ["/dev/zero", "/dev/tty", "/etc/passwd", "/nowhere"] {
            symlink(device, &path).unwrap();
            assert_eq!(ask(None), no_plain_file, "{device}");
        }
        // Nobody writes to it: to open it would take for ever.
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_eq!(ask(None), no_plain_file);
        fs::create_dir(&path).unwrap();
        assert_eq!(ask(None), no_plain_file);
        assert_eq!(folder.sources(&path).ask(&[0x1000].into()), Generated::default(), "none is there");
        fs::write(&path, "1000 10 first\n").unwrap();
        let owner = path.metadata().unwrap().uid();
        if owner == 0 && Command::new("chown").arg("65534").arg(&path).status().unwrap().success() {
            assert_eq!(ask(None), "it is not read, since it is another user's");
        } else if owner != 0 {
            assert_eq!(ask(Some(owner + 1)), "it is not read, since it is another user's");
        }
    }

    /// As `tools/perf/Documentation/jitdump-specification.txt` of Linux draws it.
    #[test]
    fn a_dump_names_the_functions_that_it_holds() {
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
            // Of lines, and of a kind that is not known.
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
            let sources = Sources { maps: Vec::new(), dumps: vec![path.clone()], ..folder.sources(&path) };
            sources.ask(&[0x1008, 0x6fff, 0x7000].into())
        };
        let found = ask(&whole);
        assert_eq!(names(&found), [(0x1008, "py::f:/a b.py"), (0x6fff, "g")]);
        assert_eq!(found.remarks, [""; 0]);
        // Cut anywhere, as by a process that is being killed, it says what is there, and never something else.
        for length in 0..40 + 16 + 80 {
            assert!(
                names(&ask(&whole[..length])).iter().all(|name| *name == (0x1008, "py::f:/a b.py")),
                "{length}"
            );
        }
        // The first one moves twice, and to where the second one was; what moves is known by its index alone.
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
        assert_eq!(ask(&other).names, [], "of a machine that writes numbers the other way round");
        // A record that is shorter than its own head goes nowhere.
        let stuck = [head(0x4A69_5444), record(0, &[])[..4].to_vec(), vec![0; 12], load(0x1000, 0x10, "f")];
        assert_eq!(ask(&stuck.concat()).names, []);
    }
}
