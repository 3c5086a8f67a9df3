//! `ibfab` as a separate process with ports for two devices of this program.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use connectx::cable::{CableEnd, CableUrl};

use crate::machine;
use crate::pair::text;

/// Names of its ports and sockets.
const PORTS: [&str; 2] = ["one", "two"];

/// The process, and the directory of its sockets; both are removed with it.
pub(crate) struct Fabric {
    process: Child,
    folder: PathBuf,
}

impl Fabric {
    /// Starts the `ibfab` next to this program; `None` if there is none.
    pub(crate) fn start(keep_crcs: bool) -> Result<Option<Self>, String> {
        let program = std::env::current_exe().map_err(text)?.with_file_name("ibfab");
        if !program.exists() {
            return Ok(None);
        }
        let folder = std::env::temp_dir().join(format!("bench-ibfab-{}-{keep_crcs}", std::process::id()));
        // New, and accessible for this user only: files in another user's directory could be links.
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .map_err(|e| format!("{}: {e}", folder.display()))?;
        let links =
            PORTS.map(|name| format!("[[link]]\nname = \"{name}\"\nurl = \"{}\"\n", url(&folder, name)));
        let config = folder.join("fabric.toml");
        std::fs::write(&config, format!("[fabric]\nkeep_crcs = {keep_crcs}\n{}", links.concat()))
            .map_err(|e| format!("{}: {e}", config.display()))?;
        // Otherwise the scheduler may wake it on the processor of its sender, and both wait for each other.
        let mut command = match machine::beside_one_lcore() {
            Some(others) => {
                let mut taskset = Command::new("taskset");
                taskset.args(["--cpu-list", &others]).arg(&program);
                taskset
            }
            None => Command::new(&program),
        };
        let process = command
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        Ok(Some(Self { process, folder }))
    }

    /// The far ends of its cables.
    pub(crate) fn cables(&self) -> Result<(CableEnd, CableEnd), String> {
        let [one, two] = PORTS.map(|name| {
            let url: CableUrl = url(&self.folder, name).parse().map_err(text)?;
            CableEnd::connect(&url).map_err(text)
        });
        Ok((one?, two?))
    }
}

fn url(folder: &Path, name: &str) -> String {
    format!("shm:{}/{name}.sock", folder.display())
}

impl Drop for Fabric {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
