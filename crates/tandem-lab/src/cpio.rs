//! Writes initramfs archives (cpio "newc"), without needing root or device nodes on disk.

use std::collections::BTreeSet;
use std::io::{self, Write};

/// An archive under construction. Parent directories of files are added implicitly.
pub struct Archive<W: Write> {
    out: W,
    inode: u32,
    seen: BTreeSet<String>,
}

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const EXECUTABLE: u32 = 0o100_755;
const SYMLINK: u32 = 0o120_777;

impl<W: Write> Archive<W> {
    /// Begins an archive.
    pub fn new(out: W) -> Self {
        Self { out, inode: 1, seen: BTreeSet::new() }
    }

    /// Adds a directory and its parents.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        let mut prefix = String::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            if !prefix.is_empty() {
                prefix.push('/');
            }
            prefix.push_str(part);
            if self.seen.insert(prefix.clone()) {
                self.entry(&prefix, DIRECTORY, &[])?;
            }
        }
        Ok(())
    }

    /// Adds a file, once.
    pub fn file(&mut self, path: &str, content: &[u8], executable: bool) -> io::Result<()> {
        // Several programs share a library.
        if !self.seen.insert(path.to_string()) {
            return Ok(());
        }
        self.parents(path)?;
        self.entry(path, if executable { EXECUTABLE } else { FILE }, content)
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.parents(path)?;
        self.entry(path, SYMLINK, target.as_bytes())
    }

    /// Ends the archive.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn parents(&mut self, path: &str) -> io::Result<()> {
        match path.rsplit_once('/') {
            Some((parent, _)) => self.directory(parent),
            None => Ok(()),
        }
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        let path = path.trim_start_matches('/');
        let size =
            u32::try_from(content.len()).map_err(|_| io::Error::other(format!("{path}: 4 GiB or more")))?;
        let name_size = path.len() as u32 + 1;
        let inode = self.inode;
        self.inode += 1;
        write!(self.out, "070701")?;
        // inode mode uid gid nlink mtime size devmajor devminor rdevmajor rdevminor namesize check
        for field in [inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0] {
            write!(self.out, "{field:08x}")?;
        }
        self.out.write_all(path.as_bytes())?;
        self.pad(110 + name_size as usize, true)?;
        self.out.write_all(content)?;
        self.pad(content.len(), false)
    }

    /// Names end with a zero byte, and every field begins at a multiple of four.
    fn pad(&mut self, length: usize, terminator: bool) -> io::Result<()> {
        let zeros = (4 - length % 4) % 4 + usize::from(terminator);
        self.out.write_all(&[0; 4][..zeros.min(4)])
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;
    use std::process::{Command, Stdio};

    #[test]
    fn an_unpacker_reads_what_was_written() {
        let Ok(mut child) = Command::new("cpio")
            .args(["-it", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        else {
            // Without the cpio program only the lab's own boots test this.
            return;
        };
        let mut archive = Archive::new(Vec::new());
        archive.file("usr/bin/one", b"12345", true).unwrap();
        archive.symlink("bin", "usr/bin").unwrap();
        archive.file("four", b"1234", false).unwrap();
        let bytes = archive.finish().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), &bytes).unwrap();
        let listed = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(listed.lines().collect::<Vec<_>>(), ["usr", "usr/bin", "usr/bin/one", "bin", "four"]);
    }
}
