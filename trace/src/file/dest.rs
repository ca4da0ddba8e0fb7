//! Where a trace file is written to: a file, and for tests and embedders anything else that takes bytes.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

/// A place that takes a trace file's bytes.
pub trait Destination: Write {
    /// Takes away everything after byte `len`; later writes go there. Called after a failed write.
    ///
    /// # Errors
    /// The place can't do that (a pipe).
    fn cut_back(&mut self, len: u64) -> io::Result<()>;
}

impl Destination for File {
    fn cut_back(&mut self, len: u64) -> io::Result<()> {
        if !self.metadata()?.is_file() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.set_len(len)?;
        self.seek(SeekFrom::Start(len)).map(|_| ())
    }
}

impl Destination for Vec<u8> {
    fn cut_back(&mut self, len: u64) -> io::Result<()> {
        self.truncate(usize::try_from(len).unwrap_or(usize::MAX));
        Ok(())
    }
}

impl<D: Destination + ?Sized> Destination for &mut D {
    fn cut_back(&mut self, len: u64) -> io::Result<()> {
        (**self).cut_back(len)
    }
}

/// Opens `path` for a new trace, private to the user. True if the file was not there before.
///
/// An existing regular file is emptied in place, so that links to it and programs that follow it stay good, and made
/// private before anything is written. A device or a pipe is written to as it is.
pub(super) fn create_private(path: &Path) -> io::Result<(File, bool)> {
    match private(OpenOptions::new().write(true).create_new(true)).open(path) {
        Ok(file) => return Ok((file, true)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e),
    }
    // Also reached through a symbolic link to a file that is not there yet, hence `create`.
    let file = private(OpenOptions::new().write(true).create(true).truncate(false)).open(path)?;
    if file.metadata()?.is_file() {
        make_private(&file)?;
        file.set_len(0)?;
    }
    Ok((file, false))
}

#[cfg(unix)]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600)
}
#[cfg(not(unix))]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

#[cfg(unix)]
fn make_private(file: &File) -> io::Result<()> {
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))
}
#[cfg(not(unix))]
fn make_private(_: &File) -> io::Result<()> {
    Ok(())
}
