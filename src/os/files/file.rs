//! A draft is a new file under a temporary name next to its final name. The library and the command create all their
//! files as drafts, with the permissions of [`set_file_mode`], and rename the drafts once they are complete. Symbolic
//! links at temporary and final names are never followed. Therefore a file with a final name is always complete, and a
//! failed write leaves no file. Recordings are the only exception: they are written under their final name from the
//! start. If the process is killed, even an incomplete recording can be read.

use std::ffi::{CString, OsString};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, ErrorKind, Read as _, Seek as _, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::process::descriptor::{Appender, FileId, enlarge_table, move_out_of_reach};
use crate::process::process_liveness;
use gpuflame_model::error::Result;

/// Permissions of new files, before the umask is applied. By default only the owner has access, because stacks and
/// names reveal much about a program.
static FILE_MODE: AtomicU32 = AtomicU32::new(0o600);
/// Permissions of the files that the `gpuflame` command creates on request. Most programs create their files with these
/// permissions.
pub const COMMAND_FILE_MODE: u32 = 0o666;
/// Maximum number of bytes that are read from a claim (see [`Claim`]).
const MAX_CLAIM_BYTES: u64 = 256;
/// Maximum number of temporary names that are tried for one file. Several attempts may be needed, because files of
/// other processes may have some of these names.
const MAX_NAME_ATTEMPTS: u32 = 1000;

/// Sets the permissions of all files that are created after this call. `mode` has the same format as for `chmod`.
pub fn set_file_mode(mode: u32) {
    FILE_MODE.store(mode, Ordering::Relaxed);
}

/// Returns the maximum size of a file in bytes, as limited for this process (`ulimit -f`). A write beyond this maximum
/// size raises SIGXFSZ.
pub fn max_size() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit writes the struct.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    if is_known { limit.rlim_cur } else { u64::MAX }
}

/// Installs a handler for SIGXFSZ that does nothing, so that a write beyond [`max_size`] fails with an error and does
/// not end this process. The handler is used instead of SIG_IGN because programs that this process starts would inherit
/// SIG_IGN.
pub fn survive_file_size_limit() {
    extern "C" fn do_nothing(_signal: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = do_nothing;
    // SAFETY: the handler accesses nothing.
    unsafe { libc::signal(libc::SIGXFSZ, handler as libc::sighandler_t) };
}

/// Creates a file, lets `content` write it, and renames it to `target` once it is complete.
///
/// # Errors
/// Fails if `content` fails, or if the file cannot be written.
pub fn write_complete(target: &Path, content: impl FnOnce(&mut DraftWriter) -> Result<()>) -> Result<()> {
    let mut draft = Draft::create(target)?;
    draft.fill(content)?;
    Ok(draft.publish()?)
}

/// Buffered writer to a draft. A draft may have at most one writer at a time.
pub type DraftWriter = BufWriter<Appender>;

/// Size in bytes of a draft writer's buffer. Each time a full buffer is written, the appender checks once whether its
/// descriptor still refers to the file.
const WRITE_BUFFER_BYTES: usize = 1 << 16;

/// A new file, usually under a temporary name. The file is removed on drop unless it was published or kept.
#[derive(Debug)]
pub struct Draft {
    path: PathBuf,
    target: PathBuf,
    identity: FileId,
    /// The open file; `None` while a writer owns it.
    appender: Option<Appender>,
    published: bool,
    /// The file's entry in the table of temporary files, if the file has a temporary name.
    temporary: TemporaryFile,
}

/// Table of the temporary files of this process. When memory runs out, the threads that write files stop, and the files
/// in this table are removed. Files that were created while the table was full are not removed.
static TEMPORARY_FILES: [AtomicPtr<TemporaryPath>; 64] = [const { AtomicPtr::new(null_mut()) }; 64];

struct TemporaryPath {
    /// Id of the process that owns the file. A forked child inherits the table, but the files in the table belong to
    /// the parent.
    process: u32,
    path: CString,
}

/// A file's entry in [`TEMPORARY_FILES`], which is removed on drop.
#[derive(Debug, Default)]
struct TemporaryFile(Option<&'static AtomicPtr<TemporaryPath>>);

impl TemporaryFile {
    fn add(path: &Path) -> Self {
        let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return Self(None) };
        let own = Box::into_raw(Box::new(TemporaryPath { process: std::process::id(), path }));
        let slot = TEMPORARY_FILES
            .iter()
            .find(|slot| slot.compare_exchange(null_mut(), own, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        if slot.is_none() {
            // SAFETY: `own` was made from a box just now, and no slot of the table refers to it.
            drop(unsafe { Box::from_raw(own) });
        }
        Self(slot)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let Some(slot) = self.0 else { return };
        let own = slot.swap(null_mut(), Ordering::AcqRel);
        if !own.is_null() {
            // SAFETY: `add` made `own` from a box, which `remove_temporary_files` can no longer reach after the swap.
            drop(unsafe { Box::from_raw(own) });
        }
    }
}

/// Removes all temporary files of this process. Allocates nothing and takes no lock, because a thread that stopped for
/// lack of memory may hold any lock.
pub fn remove_temporary_files() {
    TEMPORARY_FILES.iter().for_each(|slot| remove_file_of_entry(slot.swap(null_mut(), Ordering::AcqRel)));
}

/// Removes the file of an entry that is no longer in the table, if this process owns the file. The memory of the entry
/// is never freed.
fn remove_file_of_entry(own: *mut TemporaryPath) {
    // SAFETY: `own` is null, or points to the memory of a box. After the entry was removed from the table, no code
    // frees the entry's memory.
    let Some(own) = (unsafe { own.as_ref() }) else { return };
    if own.process == std::process::id() {
        // SAFETY: the path is a C string.
        unsafe { libc::unlink(own.path.as_ptr()) };
    }
}

/// Result of checking whether a file is still at its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLocation {
    /// The file is still at its path.
    InPlace,
    /// The file has another name now, for example because its folder was renamed.
    Moved,
    /// The file was removed from its folder, so its content was copied from the open descriptor to a new file.
    Restored,
}

impl Draft {
    /// Creates a draft in the folder of `target`, which must exist.
    ///
    /// # Errors
    /// Fails if no file can be created in the folder, or if all temporary names are taken.
    pub fn create(target: &Path) -> io::Result<Self> {
        // Temporary names contain the process id. Nevertheless, the name may exist already: a killed process, or a
        // process in another container, may have had the same id.
        for attempt in 0..MAX_NAME_ATTEMPTS {
            let path = temporary_path(target, attempt);
            match Self::create_at(path, target) {
                Ok(draft) => return Ok(draft),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(ErrorKind::AlreadyExists, "every temporary file name next to it is taken"))
    }

    /// Creates a file under its final name `path`, for content that is useful before it is complete.
    ///
    /// # Errors
    /// Fails if no file can be created in the folder, or if the name is taken.
    pub fn create_in_place(path: &Path) -> io::Result<Self> {
        Self::create_at(path.to_owned(), path)
    }

    fn create_at(path: PathBuf, target: &Path) -> io::Result<Self> {
        enlarge_table();
        // The file is also opened for reading, because if the file is removed, only this descriptor can read its
        // content.
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create_new(true)
            .mode(FILE_MODE.load(Ordering::Relaxed))
            .open(&path)?;
        let file = move_out_of_reach(file);
        let identity = FileId::from_file(&file)?;
        let temporary = if path == target { TemporaryFile::default() } else { TemporaryFile::add(&path) };
        let appender = Some(Appender::new(&path, identity, Some(file)));
        let target = target.to_owned();
        Ok(Self { path, target, identity, appender, published: false, temporary })
    }

    /// Current path of the file, before it is published.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Final path for which the file was created.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Device and inode of the file.
    pub fn identity(&self) -> FileId {
        self.identity
    }

    /// Calls `content` to write the whole file.
    ///
    /// # Errors
    /// Fails if `content` fails, or if the file cannot be written.
    pub fn fill(&mut self, content: impl FnOnce(&mut DraftWriter) -> Result<()>) -> Result<()> {
        let mut out = self.writer();
        content(&mut out)?;
        Ok(out.flush()?)
    }

    /// Ends the draft, and keeps its file under the current name.
    pub fn keep(mut self) {
        self.temporary = TemporaryFile::default();
        self.published = true;
    }

    /// Creates a buffered writer to the file.
    pub fn writer(&mut self) -> DraftWriter {
        BufWriter::with_capacity(WRITE_BUFFER_BYTES, self.appender())
    }

    /// Creates an unbuffered writer to the file, for callers that have their own buffer.
    pub fn appender(&mut self) -> Appender {
        self.appender.take().unwrap_or_else(|| Appender::new(&self.path, self.identity, None))
    }

    /// Gives the open file back to the draft. Call this function when the draft's writer is finished.
    pub fn return_appender(&mut self, appender: Appender) {
        self.appender = Some(appender);
    }

    /// Checks whether the file is still at its path. If the file was moved, finds its new path, because a file that has
    /// grown for hours may have been renamed. If the file was removed, its content is copied from its descriptor to a
    /// new file with the name for which the draft was created. Call this function before publishing.
    ///
    /// # Errors
    /// Fails if the file system returns an error. Also fails if the file was removed and its descriptor is closed,
    /// because its content is then lost.
    pub fn locate(&mut self) -> io::Result<FileLocation> {
        if self.is_at(&self.path) {
            return Ok(FileLocation::InPlace);
        }
        let lost = || {
            io::Error::new(
                ErrorKind::NotFound,
                "the file was removed while it was being written, and its content is lost",
            )
        };
        let appender = self.appender.take().ok_or_else(lost)?;
        let file = appender.open_file().ok_or_else(lost)?;
        if let Ok(place) = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
            && self.is_at(&place)
        {
            if self.path == self.target {
                self.target = place.clone();
            } else {
                self.temporary = TemporaryFile::add(&place);
            }
            self.path = place;
            return Ok(FileLocation::Moved);
        }
        self.restore(file)?;
        Ok(FileLocation::Restored)
    }

    fn is_at(&self, path: &Path) -> bool {
        FileId::from_path(path).is_ok_and(|identity| identity == self.identity)
    }

    /// Replaces this draft by a new draft in the target's folder, with the content of `file`.
    fn restore(&mut self, file: &File) -> io::Result<()> {
        if let Some(folder) = self.target.parent() {
            fs::create_dir_all(folder)?;
        }
        // If the old file was created under its final name, try to create the copy under its final name, too.
        let grows_in_place = self.path == self.target;
        let in_place = grows_in_place.then(|| Self::create_in_place(&self.target).ok()).flatten();
        let mut copy = match in_place {
            Some(copy) => copy,
            None => Self::create(&self.target)?,
        };
        let mut out = copy.writer();
        let mut from = file;
        from.rewind()?;
        io::copy(&mut from, &mut out)?;
        out.flush()?;
        drop(out);
        // The old draft's file no longer exists, so dropping the draft must not remove any file.
        self.published = true;
        *self = copy;
        Ok(())
    }

    /// Gives the file its final name. If a file of the same owner already has that name, the new file replaces the old
    /// file and gets the old file's permissions.
    ///
    /// # Errors
    /// Fails if the file system returns an error.
    pub fn publish(self) -> io::Result<()> {
        let target = self.target.clone();
        self.publish_as(&target)
    }

    /// Gives the file the final name `target`, which may differ from the name for which the draft was created. If
    /// `target` is on another file system, the file is copied.
    ///
    /// # Errors
    /// Fails if the file system returns an error.
    pub fn publish_as(mut self, target: &Path) -> io::Result<()> {
        if self.path != target {
            if let Some(permissions) = inherited_permissions(target, &self.path) {
                Appender::new(&self.path, self.identity, None).open()?.set_permissions(permissions)?;
            }
            match fs::rename(&self.path, target) {
                Err(error) if error.kind() == ErrorKind::CrossesDevices => {
                    let copied = copy(&self.path, target);
                    // If the copy failed, dropping this draft must not remove the original file.
                    self.published = copied.is_err();
                    return copied;
                }
                renamed => renamed?,
            }
        }
        self.published = true;
        Ok(())
    }
}

/// Methods that publish a file without replacing existing files.
impl Draft {
    /// Gives the file a final name that no other file has: the name for which the draft was created, or that name with
    /// a number. Returns the final name.
    ///
    /// # Errors
    /// Fails if the file system returns an error.
    pub fn publish_new(self) -> io::Result<PathBuf> {
        let target = self.target.clone();
        self.publish_new_as(&target)
    }

    /// Does the same as [`Draft::publish_new`], but with the name `target`, which may differ from the name for which
    /// the draft was created.
    ///
    /// # Errors
    /// Fails if the file system returns an error.
    pub fn publish_new_as(mut self, target: &Path) -> io::Result<PathBuf> {
        if self.path == target {
            self.published = true;
            return Ok(self.path.clone());
        }
        for number in 0..MAX_NAME_ATTEMPTS {
            let name = numbered_path(target, number);
            match rename_to_new(&self.path, &name) {
                Ok(()) => {
                    self.published = true;
                    return Ok(name);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == ErrorKind::CrossesDevices => {
                    let copied = copy_to_new(&self.path, &name);
                    // If the copy failed, dropping this draft must not remove the original file.
                    self.published = copied.is_err();
                    return copied;
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(
            ErrorKind::AlreadyExists,
            "this file name and a thousand numbered variants are taken",
        ))
    }
}

/// Returns the path `target` with a number in its name: `out.svg` for 0, `out.1.svg` for 1, and so on.
fn numbered_path(target: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return target.to_owned();
    }
    let mut name = target.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{number}"));
    if let Some(extension) = target.extension() {
        name.push(".");
        name.push(extension);
    }
    target.with_file_name(name)
}

/// Renames a file, unless another file already has the new name. The system call is made directly, because glibc before
/// 2.28 has no `renameat2`. If the file system does not support `renameat2`, creates a hard link with the new name and
/// removes the old name. If the file system does not support hard links either, checks that no file has the new name,
/// and renames the file.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    let paths = [from, to].map(|path| CString::new(path.as_os_str().as_bytes()));
    let [Ok(old), Ok(new)] = &paths else { return Err(ErrorKind::InvalidInput.into()) };
    // SAFETY: both paths are C strings.
    let renamed = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            old.as_ptr(),
            libc::AT_FDCWD,
            new.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    if renamed == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if !matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::EPERM)) {
        return Err(error);
    }
    rename_by_link(from, to)
}

fn rename_by_link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::CrossesDevices) => {
            Err(error)
        }
        Err(_) if to.symlink_metadata().is_ok() => Err(ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(from, to),
    }
}

fn copy_to_new(from: &Path, target: &Path) -> io::Result<PathBuf> {
    copy_to_draft(from, target)?.publish_new()
}

fn copy(from: &Path, target: &Path) -> io::Result<()> {
    copy_to_draft(from, target)?.publish()
}

/// Creates a draft next to `target` with the content of `from`.
fn copy_to_draft(from: &Path, target: &Path) -> io::Result<Draft> {
    let mut draft = Draft::create(target)?;
    let mut out = draft.writer();
    io::copy(&mut File::open(from)?, &mut out)?;
    out.flush()?;
    drop(out);
    Ok(draft)
}

/// Returns the permissions of the file at `target`, which `draft` will replace, so that `draft` can get the same
/// permissions. Returns `None` if there is no file at `target`, or if that file belongs to another user. If another
/// user has made the file writable for all users, gpuflame's new file must not become writable for all users. If the
/// old and the new file belong to different groups, the new file's group gets only the permissions that all other users
/// have.
fn inherited_permissions(target: &Path, draft: &Path) -> Option<Permissions> {
    let old = target.symlink_metadata().ok().filter(Metadata::is_file)?;
    let new = draft.symlink_metadata().ok().filter(|new| new.uid() == old.uid())?;
    let mode = old.mode() & 0o777;
    let group = if new.gid() == old.gid() { mode } else { mode << 3 };
    Some(Permissions::from_mode(mode & !0o070 | group & 0o070))
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Check the file's identity before removing the file, because a file of another process may have this name now.
        if !self.published && self.is_at(&self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A claim is a small file, `NAME.part`, with which a process reserves the name `NAME` and related names before it
/// creates files with these names. If several processes want the same name, one process obtains the claim, and the
/// other processes fail immediately without waiting. A claim contains the identity of its process, so that the claim of
/// a killed process can be replaced. The claim is removed on drop.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    /// The claim's entry in the table of temporary files.
    _temporary: TemporaryFile,
}

impl Claim {
    /// Claims the name `target`.
    ///
    /// # Errors
    /// Fails if the claim file cannot be created, or if another process has claimed the name. A claim does not count if
    /// its process is known to have ended.
    pub fn acquire(target: &Path) -> io::Result<Self> {
        let path = claim_path(target);
        let made = match Draft::create_at(path.clone(), &path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && remove_dead_claim(&path) => {
                Draft::create_at(path.clone(), &path)
            }
            made => made,
        };
        let mut draft = made?;
        // Ignore errors. If the claim file stays empty, for example because the disk is full, it counts as the claim of
        // a running process.
        let _ = draft
            .fill(|out| Ok(out.write_all(process_liveness::ThreadIdentity::current().to_line().as_bytes())?));
        draft.keep();
        let _temporary = TemporaryFile::add(&path);
        Ok(Self { path, _temporary })
    }

    /// Whether a process has claimed the name of this file. If the process that made the claim has ended, removes the
    /// claim and returns false.
    pub fn is_claimed(target: &Path) -> bool {
        let path = claim_path(target);
        path.symlink_metadata().is_ok() && !remove_dead_claim(&path)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn claim_path(target: &Path) -> PathBuf {
    let mut path = OsString::from(target);
    path.push(".part");
    path.into()
}

/// Removes a claim if its process has ended. Returns true if the claim was removed.
fn remove_dead_claim(path: &Path) -> bool {
    let is_of_nobody = |path: &Path| read_claim_owner(path).and_then(|whose| whose.is_alive()) == Some(false);
    if !is_of_nobody(path) {
        return false;
    }
    // Rename the claim file before it is removed. Two processes may find the same claim of an ended process, but only
    // one process can rename the claim. Without the rename, the second process might remove a new claim of the first
    // process.
    let aside = temporary_path(path, 0);
    if rename_to_new(path, &aside).is_err() {
        return false;
    }
    if is_of_nobody(&aside) {
        return fs::remove_file(aside).is_ok();
    }
    let _ = rename_to_new(&aside, path);
    false
}

/// Returns the identity of the thread that created the claim, if the file contains the identity.
fn read_claim_owner(path: &Path) -> Option<process_liveness::ThreadIdentity> {
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).ok()?;
    let mut line = String::new();
    file.take(MAX_CLAIM_BYTES).read_to_string(&mut line).ok()?;
    process_liveness::ThreadIdentity::parse_line(&line)
}

fn temporary_path(target: &Path, attempt: u32) -> PathBuf {
    let mut name = OsString::from(target);
    name.push(match attempt {
        0 => format!(".{}.part", std::process::id()),
        _ => format!(".{}.{attempt}.part", std::process::id()),
    });
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing::{folder, names};
    use gpuflame_model::error::{Error, ErrorKind};

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    fn write(target: &Path, text: &str) {
        write_complete(target, |out| Ok(out.write_all(text.as_bytes())?)).unwrap();
    }

    #[test]
    fn new_files_are_owner_only_and_replaced_files_keep_their_mode() {
        let folder = folder("file-rights");
        let (new, old) = (folder.join("new"), folder.join("old"));
        fs::write(&old, "before").unwrap();
        fs::set_permissions(&old, Permissions::from_mode(0o664)).unwrap();
        write(&new, "text");
        write(&old, "text");
        assert_eq!((mode(&new), mode(&old)), (0o600, 0o664));
        assert_eq!(fs::read_to_string(&old).unwrap(), "text");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn permissions_are_inherited_only_from_a_file_of_the_same_owner_and_group() {
        let folder = folder("file-owner");
        let replaced = |user: Option<u32>, group: Option<u32>| {
            let target = folder.join("old");
            fs::write(&target, "before").unwrap();
            std::os::unix::fs::chown(&target, user, group)?;
            fs::set_permissions(&target, Permissions::from_mode(0o664)).unwrap();
            write(&target, "text");
            let mode = mode(&target);
            fs::remove_file(&target).unwrap();
            Ok::<_, io::Error>(mode)
        };
        assert_eq!(replaced(None, None).unwrap(), 0o664);
        match (replaced(Some(65_534), None), replaced(None, Some(65_534))) {
            (Ok(others), Ok(other_group)) => assert_eq!((others, other_group), (0o600, 0o644)),
            _ => crate::skip::skip("only root can give files to another user"),
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_draft_is_published_even_if_its_file_was_removed_or_moved() {
        let folder = folder("file-found");
        for (in_place, is_moved) in [(true, false), (true, true), (false, false), (false, true)] {
            let (deep, elsewhere) = (folder.join("deep"), folder.join("elsewhere"));
            fs::create_dir(&deep).unwrap();
            let target = deep.join("x.gfr");
            let make = if in_place { Draft::create_in_place } else { Draft::create };
            let mut draft = make(&target).unwrap();
            let mut out = draft.appender();
            out.write_all(b"text").unwrap();
            match is_moved {
                true => fs::rename(&deep, &elsewhere).unwrap(),
                false => fs::remove_dir_all(&deep).unwrap(),
            }
            out.write_all(b" and more").unwrap();
            draft.return_appender(out);
            let fate = draft.locate().unwrap();
            assert_eq!(fate, if is_moved { FileLocation::Moved } else { FileLocation::Restored });
            let stays = in_place && is_moved;
            let expected = if stays { elsewhere.join("x.gfr") } else { target };
            fs::create_dir_all(&deep).unwrap();
            assert_eq!(draft.publish_new().unwrap(), expected);
            assert_eq!(fs::read_to_string(&expected).unwrap(), "text and more");
            let left = names(&deep).len() + if is_moved { names(&elsewhere).len() } else { 0 };
            assert_eq!(left, 1, "no temporary file is left");
            let _ = (fs::remove_dir_all(deep), fs::remove_dir_all(elsewhere));
        }
        fs::remove_dir_all(folder).unwrap();
    }

    /// Checks that symbolic links at temporary names are not followed. Another user with write access to the folder
    /// could guess a temporary name, and create a link with this name to one of the victim's files.
    #[test]
    fn symlinks_under_our_file_names_are_not_followed() {
        let folder = folder("file-link");
        let (victim, target) = (folder.join("victim"), folder.join("x.svg"));
        fs::write(&victim, "mine").unwrap();
        symlink(&victim, temporary_path(&target, 0)).unwrap();
        symlink(&victim, &target).unwrap();
        write(&target, "ours");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
        assert_eq!(fs::read_to_string(&target).unwrap(), "ours");
        assert!(!target.is_symlink());
        assert!(temporary_path(&target, 0).is_symlink());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn removing_unpublished_files_keeps_published_files_and_those_of_the_parent() {
        let folder = folder("file-unpublished");
        let draft = Draft::create(&folder.join("a.svg")).unwrap();
        let claim = Claim::acquire(&folder.join("a.set.json")).unwrap();
        let recording = Draft::create_in_place(&folder.join("a.gfr")).unwrap();
        write(&folder.join("b.svg"), "whole");
        // SAFETY: the child only makes system calls, and `_exit` skips the harness's exit handlers.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                remove_temporary_files();
                libc::_exit(0);
            }
            assert_eq!(libc::waitpid(child, null_mut(), 0), child);
        }
        assert_eq!(names(&folder).len(), 4);
        // Remove only the files of these two entries in this process. All other temporary files must stay, because
        // other tests in this process use them.
        for own in [draft.temporary.0, claim._temporary.0] {
            let own = own.unwrap().swap(null_mut(), Ordering::AcqRel);
            remove_file_of_entry(own);
        }
        assert_eq!(names(&folder), ["a.gfr", "b.svg"]);
        drop((draft, claim));
        recording.keep();
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_under_our_temporary_name_is_left_unchanged() {
        let folder = folder("file-taken");
        let target = folder.join("x.csv");
        fs::write(temporary_path(&target, 0), "somebody's").unwrap();
        write(&target, "done");
        assert_eq!(fs::read_to_string(temporary_path(&target, 0)).unwrap(), "somebody's");
        assert_eq!(fs::read_to_string(&target).unwrap(), "done");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_name_can_be_claimed_once_until_it_is_released() {
        let folder = folder("file-claim");
        let target = folder.join("x.set.json");
        let taken = || Claim::acquire(&target).unwrap_err().kind();
        let given_up = Claim::acquire(&target).unwrap();
        assert!(Claim::is_claimed(&target));
        assert_eq!(
            (taken(), mode(&folder.join("x.set.json.part"))),
            (std::io::ErrorKind::AlreadyExists, 0o600)
        );
        drop(given_up);
        assert!(!Claim::is_claimed(&target));
        symlink("nowhere", folder.join("x.set.json.part")).unwrap();
        assert_eq!(taken(), std::io::ErrorKind::AlreadyExists);
        fs::remove_file(folder.join("x.set.json.part")).unwrap();
        fs::write(folder.join("x.set.json.part"), "what says nothing of whose it is").unwrap();
        assert_eq!(taken(), std::io::ErrorKind::AlreadyExists);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_replaced_ours_is_not_written_to() {
        let folder = folder("file-place");
        let mut draft = Draft::create(&folder.join("x")).unwrap();
        draft.appender = None;
        let mut out = draft.writer();
        out.write_all(b"ours").unwrap();
        fs::write(folder.join("theirs"), "theirs").unwrap();
        fs::rename(folder.join("theirs"), &draft.path).unwrap();
        assert_eq!(out.flush().unwrap_err().kind(), std::io::ErrorKind::NotFound);
        assert_eq!(fs::read_to_string(&draft.path).unwrap(), "theirs");
        drop(out.into_parts());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn dropping_a_draft_never_removes_a_file_that_took_its_name() {
        let folder = folder("file-not-ours");
        let draft = Draft::create_in_place(&folder.join("x")).unwrap();
        fs::remove_file(folder.join("x")).unwrap();
        fs::write(folder.join("x"), "theirs").unwrap();
        drop(draft);
        assert_eq!(fs::read_to_string(folder.join("x")).unwrap(), "theirs");
        fs::remove_dir_all(folder).unwrap();
    }

    /// Checks the case that the program chooses another folder after a recording's draft was created. The draft is
    /// published to the newly chosen folder.
    #[test]
    fn a_draft_can_be_published_to_another_folder_or_file_system() {
        let (here, elsewhere) = (folder("file-here"), Path::new("/dev/shm"));
        let device =
            |path: &Path| path.metadata().map(|found| std::os::unix::fs::MetadataExt::dev(&found)).ok();
        let mut places = vec![here.join("sub/x")];
        fs::create_dir(here.join("sub")).unwrap();
        if device(elsewhere).is_some_and(|other| Some(other) != device(&here)) {
            places.push(elsewhere.join(format!("gpuflame-file-{}", std::process::id())));
        }
        for place in places {
            let mut draft = Draft::create_in_place(&here.join("draft")).unwrap();
            draft.fill(|out| Ok(out.write_all(b"text")?)).unwrap();
            draft.publish_as(&place).unwrap();
            assert_eq!((fs::read_to_string(&place).unwrap().as_str(), mode(&place)), ("text", 0o600));
            assert_eq!(names(&here), ["sub"]);
            fs::remove_file(place).unwrap();
        }
        fs::remove_dir_all(here).unwrap();
    }

    #[test]
    fn a_file_created_under_our_name_meanwhile_stays_and_ours_is_numbered() {
        let folder = folder("file-meanwhile");
        for rename in [rename_to_new, rename_by_link] {
            let target = folder.join("x.idle.svg");
            let mut draft = Draft::create(&target).unwrap();
            draft.fill(|out| Ok(out.write_all(b"ours")?)).unwrap();
            fs::write(&target, "theirs").unwrap();
            assert_eq!(rename(&draft.path, &target).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
            symlink("nowhere", folder.join("x.idle.1.svg")).unwrap();
            let published = draft.publish_new().unwrap();
            assert_eq!(published, folder.join("x.idle.2.svg"));
            rename(&published, &folder.join("moved")).unwrap();
            assert_eq!(fs::read_to_string(folder.join("moved")).unwrap(), "ours");
            assert_eq!(fs::read_to_string(&target).unwrap(), "theirs");
            assert_eq!(names(&folder), ["moved", "x.idle.1.svg", "x.idle.svg"]);
            for name in names(&folder) {
                fs::remove_file(folder.join(name)).unwrap();
            }
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_failed_write_keeps_the_old_file_and_creates_none() {
        let folder = folder("file-half");
        fs::write(folder.join("old"), "before").unwrap();
        for name in ["old", "new"] {
            let failed = write_complete(&folder.join(name), |out| {
                out.write_all(b"begun")?;
                Err(Error::new(ErrorKind::Io, "no room"))
            });
            assert_eq!(failed.unwrap_err().to_string(), "no room");
        }
        assert_eq!(names(&folder), ["old"]);
        assert_eq!(fs::read_to_string(folder.join("old")).unwrap(), "before");
        fs::remove_dir_all(folder).unwrap();
    }
}
