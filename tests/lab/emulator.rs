//! One running lab: an emulated machine with a real `/dev/kvm` that carries out steps.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The lab is up in about 5 s; this is for machines under load.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// What the lab may take beyond a step's own limit, which it watches over itself.
const GRACE: Duration = Duration::from_secs(60);
/// Most that a step may print.
const MAX_OUTPUT: u64 = 64 << 20;

/// Where the recipes are.
pub fn recipes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("images")
}

/// The lab could not do its work: nothing is said about exotrace.
#[derive(Debug)]
pub enum LabError {
    /// Its own kernel panicked: the lines of its log.
    Panicked(String),
    /// It ended before it should have: the end of its log.
    Ended(String),
    /// It does not answer: the end of its log.
    Hangs(String),
    /// It could not be started or talked to.
    Broken(String),
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabError::Panicked(log) => write!(f, "THE LAB ITSELF PANICKED (not a failure of what was tested):\n{log}"),
            LabError::Ended(log) => write!(f, "THE LAB ITSELF ENDED (not a failure of what was tested):\n{log}"),
            LabError::Hangs(log) => write!(f, "THE LAB ITSELF HANGS (not a failure of what was tested):\n{log}"),
            LabError::Broken(why) => write!(f, "THE LAB ITSELF CANNOT BE USED: {why}"),
        }
    }
}

/// What came of a step.
#[derive(Debug)]
pub struct Step {
    /// Its exit code; 137: it was killed, because its time was up.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// How long it took, by the emulated machine's clock.
    pub time: Duration,
}

/// A running lab. Dropped: ended.
pub struct Lab {
    machine: Child,
    socket: BufReader<UnixStream>,
    log: PathBuf,
    steps: u32,
    usable: bool,
    _dir: tempfile::TempDir,
}

impl Lab {
    /// Starts a lab with these files in it: path here, path there.
    pub fn boot(files: &[(PathBuf, String)]) -> Result<Lab, LabError> {
        let broken = |e: io::Error| LabError::Broken(e.to_string());
        let dir = tempfile::tempdir().map_err(broken)?;
        let (path, log) = (dir.path().join("socket"), dir.path().join("log"));
        let listener = UnixListener::bind(&path).map_err(broken)?;
        listener.set_nonblocking(true).map_err(broken)?;
        let mut command = Command::new(recipes().join("lab"));
        for (here, there) in files {
            command.arg("--file").arg(format!("{}={there}", here.display()));
        }
        command.arg("--log").arg(&log).arg("--serve").arg(&path).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(std::fs::File::create(dir.path().join("stderr")).map_err(broken)?);
        let mut machine = command.spawn().map_err(broken)?;
        let socket = accept(&listener, &mut machine).map_err(|e| {
            let said = std::fs::read_to_string(dir.path().join("stderr")).unwrap_or_default();
            // It may be half way up; an error from here is already the report.
            let _ = machine.kill();
            let _ = machine.wait();
            LabError::Broken(format!("{e}: {said}"))
        })?;
        let socket = BufReader::new(socket);
        let mut lab = Lab { machine, socket, log, steps: 0, usable: true, _dir: dir };
        let line = lab.line(Instant::now() + BOOT_LIMIT).map_err(|e| lab.diagnose(&e))?;
        if line != "ready" {
            return Err(LabError::Broken(format!("it began with {line:?}")));
        }
        Ok(lab)
    }

    /// Whether further steps make sense.
    pub fn usable(&self) -> bool {
        self.usable
    }

    /// Runs a shell command to its end, at most for `limit` of the emulated machine's time.
    pub fn run(&mut self, command: &str, limit: Duration) -> Result<Step, LabError> {
        self.steps += 1;
        let done = self.attempt(command, limit);
        done.map_err(|e| {
            self.usable = false;
            self.diagnose(&e)
        })
    }

    fn attempt(&mut self, command: &str, limit: Duration) -> io::Result<Step> {
        let request = format!("{} {} {}\n", self.steps, limit.as_secs(), base64(command.as_bytes()));
        self.socket.get_mut().write_all(request.as_bytes())?;
        let deadline = Instant::now() + limit + GRACE;
        let line = self.line(deadline)?;
        let bad = || io::Error::other(format!("it answered {line:?} to step {}", self.steps));
        let fields: Option<Vec<u64>> = line.split(' ').map(|f| f.parse().ok()).collect();
        let [id, code, out, err, centiseconds] = fields.ok_or_else(bad)?[..] else { return Err(bad()) };
        if id != u64::from(self.steps) || out.saturating_add(err) > MAX_OUTPUT {
            return Err(bad());
        }
        let (out, err) = (self.bytes(out as usize, deadline)?, self.bytes(err as usize, deadline)?);
        Ok(Step { code: code as i32, out, err, time: Duration::from_millis(centiseconds * 10) })
    }

    /// Waits for data, but not beyond the deadline; an end of the stream is an error here.
    fn fill(&mut self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.socket.get_ref().set_read_timeout(Some(left))?;
        if self.socket.fill_buf()?.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn line(&mut self, deadline: Instant) -> io::Result<String> {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            self.fill(deadline)?;
            (&mut self.socket).take(1).read_to_end(&mut line)?;
        }
        Ok(String::from_utf8_lossy(&line).trim().to_owned())
    }

    fn bytes(&mut self, n: usize, deadline: Instant) -> io::Result<String> {
        let mut bytes = Vec::with_capacity(n);
        while bytes.len() < n {
            self.fill(deadline)?;
            let ready = self.socket.buffer();
            let some = ready.len().min(n - bytes.len());
            bytes.extend_from_slice(&ready[..some]);
            self.socket.consume(some);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Tells from an error of the connection and the kernel's log what happened to the lab.
    fn diagnose(&mut self, e: &io::Error) -> LabError {
        // Its last words are written a little after its connection is gone.
        std::thread::sleep(Duration::from_millis(500));
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let fatal = ["Kernel panic", "BUG: ", "Oops: ", "general protection fault"];
        if let Some(first) = log.lines().position(|l| fatal.iter().any(|f| l.contains(f))) {
            return LabError::Panicked(
                log.lines().skip(first.saturating_sub(3)).take(60).collect::<Vec<_>>().join("\n"),
            );
        }
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(15)..].join("\n");
        match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => LabError::Hangs(tail),
            io::ErrorKind::Other => LabError::Broken(e.to_string()),
            _ => LabError::Ended(tail),
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // An emulator has nothing to save: no need to be gentle.
        let _ = self.machine.kill();
        let _ = self.machine.wait();
    }
}

/// Waits for the machine to connect.
fn accept(listener: &UnixListener, machine: &mut Child) -> io::Result<UnixStream> {
    let deadline = Instant::now() + BOOT_LIMIT;
    loop {
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false)?;
                return Ok(socket);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        if let Some(status) = machine.try_wait()? {
            return Err(io::Error::other(format!("images/lab ended early with {status}")));
        }
        if Instant::now() > deadline {
            return Err(io::Error::other("images/lab does not connect"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |w, b| w << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * i) & 63) as usize];
            text.push(if i <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}
