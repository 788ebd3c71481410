//! The mounted cgroup file systems: one unified tree (v2), or one tree per controller (v1, also "hybrid").
//! Used by `container_manager`.
//! Writes only files of groups it was asked about, and removes only empty groups.

use std::{
    io,
    path::{Path, PathBuf},
};

const MOUNT_POINT: &str = "/sys/fs/cgroup";
/// Whose trees have our groups (v1); the others' only say who is where.
const LIMITING: [&str; 5] = ["cpu", "cpuacct", "memory", "pids", "hugetlb"];

pub enum Hierarchy {
    Unified {
        root: PathBuf,
    },
    /// Controller (as its directory is named) and where it is mounted.
    Separate {
        controllers: Vec<(String, PathBuf)>,
    },
}

impl Hierarchy {
    pub fn detect() -> Self {
        let root = PathBuf::from(MOUNT_POINT);
        if root.join("cgroup.controllers").exists() {
            return Self::unified(&root);
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mut controllers = Vec::new();
        for line in mounts.lines() {
            let mut words = line.split(' ');
            let (Some(_), Some(place), Some(kind), Some(options)) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            match kind {
                "cgroup" => controllers.push((options.to_string(), PathBuf::from(place))),
                // Limits nothing beside v1, but the runtime makes groups there too, which must go again.
                "cgroup2" => controllers.push(("unified".into(), PathBuf::from(place))),
                _ => {}
            }
        }
        Self::Separate { controllers }
    }

    pub fn unified(root: &Path) -> Self {
        Self::Unified { root: root.into() }
    }

    #[cfg(test)]
    pub fn separate(root: &Path, names: &[&str]) -> Self {
        Self::Separate { controllers: names.iter().map(|name| (name.to_string(), root.join(name))).collect() }
    }

    pub fn directories(&self, path: &[String]) -> Vec<PathBuf> {
        let below = |root: &Path| path.iter().fold(root.to_path_buf(), |place, part| place.join(part));
        match self {
            Self::Unified { root } => vec![below(root)],
            Self::Separate { controllers } => controllers.iter().map(|(_, root)| below(root)).collect(),
        }
    }

    /// The directory of one controller.
    pub fn group_dir(&self, controller: &str, path: &[String]) -> Option<PathBuf> {
        match self {
            Self::Unified { .. } => self.directories(path).pop(),
            Self::Separate { controllers } => {
                let (_, root) = controllers.iter().find(|(options, _)| options.split(',').any(|o| o == controller))?;
                Some(path.iter().fold(root.clone(), |place, part| place.join(part)))
            }
        }
    }

    pub fn create(&self, path: &[String]) -> io::Result<()> {
        match self {
            Self::Unified { root } => {
                let mut place = root.clone();
                for part in path {
                    delegate(&place);
                    place.push(part);
                    create_directory(&place)?;
                }
                delegate(&place);
            }
            Self::Separate { .. } => {
                for controller in LIMITING {
                    if let Some(place) = self.group_dir(controller, path) {
                        std::fs::create_dir_all(place)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Moves a process to a group, which is made where it is not there. The service manager's own tree stays as it is.
    pub fn join(&self, path: &[String], process: u32) -> io::Result<()> {
        let Some((_, parents)) = path.split_last() else { return Ok(()) };
        // Not the group itself: one whose children are limited can have no processes (v2).
        self.create(parents)?;
        let places = match self {
            Self::Unified { .. } => self.directories(path),
            Self::Separate { .. } => LIMITING.iter().filter_map(|name| self.group_dir(name, path)).collect(),
        };
        for place in places {
            create_directory(&place)?;
            write(&place, "cgroup.procs", &process.to_string())?;
        }
        Ok(())
    }

    pub fn set_shares(&self, path: &[String], shares: i64) -> io::Result<()> {
        let Some(place) = self.group_dir("cpu", path) else { return Ok(()) };
        match self {
            Self::Unified { .. } => write(&place, "cpu.weight", &weight(shares).to_string()),
            Self::Separate { .. } => write(&place, "cpu.shares", &shares.to_string()),
        }
    }

    pub fn set_cpu(&self, path: &[String], shares: i64, quota: i64) -> io::Result<()> {
        let Some(place) = self.group_dir("cpu", path) else { return Ok(()) };
        self.set_shares(path, shares)?;
        match self {
            Self::Unified { .. } => {
                let limit = if quota > 0 { quota.to_string() } else { "max".into() };
                write(&place, "cpu.max", &format!("{limit} 100000"))
            }
            Self::Separate { .. } => {
                write(&place, "cpu.cfs_period_us", "100000")?;
                write(&place, "cpu.cfs_quota_us", &if quota > 0 { quota } else { -1 }.to_string())
            }
        }
    }

    /// The shares of a group, as far as they can be told from its weight.
    pub fn shares(&self, path: &[String]) -> Option<i64> {
        let place = self.group_dir("cpu", path)?;
        let read = |file: &str| std::fs::read_to_string(place.join(file)).ok()?.trim().parse::<i64>().ok();
        match self {
            Self::Unified { .. } => read("cpu.weight").map(|weight| 2 + (weight - 1) * 262_142 / 9999),
            Self::Separate { .. } => read("cpu.shares"),
        }
    }

    pub fn set_memory(&self, path: &[String], bytes: i64) -> io::Result<()> {
        let Some(place) = self.group_dir("memory", path) else { return Ok(()) };
        match self {
            Self::Unified { .. } => write(&place, "memory.max", &bytes.to_string()),
            Self::Separate { .. } => write(&place, "memory.limit_in_bytes", &bytes.to_string()),
        }
    }

    /// Memory that is not reclaimed from the group (v2).
    pub fn set_memory_min(&self, path: &[String], bytes: i64) -> io::Result<()> {
        match self.group_dir("memory", path).filter(|_| self.is_unified()) {
            Some(place) => write(&place, "memory.min", &bytes.to_string()),
            None => Ok(()),
        }
    }

    pub fn set_pids(&self, path: &[String], most: i64) -> io::Result<()> {
        match self.group_dir("pids", path) {
            Some(place) => write(&place, "pids.max", &most.to_string()),
            None => Ok(()),
        }
    }

    /// Bytes of huge pages by size ("2MB"); machines without the controller limit nothing.
    pub fn set_hugepages(&self, path: &[String], limits: &[(String, i64)]) -> io::Result<()> {
        let Some(place) = self.group_dir("hugetlb", path) else { return Ok(()) };
        for (size, bytes) in limits {
            let file = match self {
                Self::Unified { .. } => format!("hugetlb.{size}.max"),
                Self::Separate { .. } => format!("hugetlb.{size}.limit_in_bytes"),
            };
            // In one tree for all controllers, the file is there when this one is.
            if matches!(self, Self::Separate { .. }) || place.join(&file).exists() {
                write(&place, &file, &bytes.to_string())?;
            }
        }
        Ok(())
    }

    /// Whether swap can be limited below this group.
    pub fn limits_swap(&self, path: &[String]) -> bool {
        let file = if self.is_unified() { "memory.swap.max" } else { "memory.memsw.limit_in_bytes" };
        self.group_dir("memory", path).is_some_and(|place| place.join(file).exists())
    }

    pub fn is_unified(&self) -> bool {
        matches!(self, Self::Unified { .. })
    }

    pub fn children(&self, path: &[String]) -> Vec<String> {
        let mut names = Vec::new();
        for directory in self.directories(path) {
            for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    names.push(entry.file_name().to_string_lossy().into_owned());
                }
            }
        }
        names.sort();
        names.dedup();
        names
    }

    pub fn remove(&self, path: &[String]) -> io::Result<()> {
        self.directories(path).iter().try_for_each(|directory| remove_tree(directory))
    }
}

/// The kernel's own mapping of shares in [2, 262144] to weights in [1, 10000].
pub fn weight(shares: i64) -> i64 {
    1 + ((shares - 2).max(0) * 9999) / 262_142
}

fn create_directory(place: &Path) -> io::Result<()> {
    match std::fs::create_dir(place) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Lets children of this group be limited (v2). What the machine does not have is left out.
fn delegate(place: &Path) {
    let available = std::fs::read_to_string(place.join("cgroup.controllers")).unwrap_or_default();
    for controller in available.split_whitespace() {
        let _ = std::fs::write(place.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

fn write(place: &Path, file: &str, text: &str) -> io::Result<()> {
    let path = place.join(file);
    std::fs::write(&path, text)
        .map_err(|error| io::Error::new(error.kind(), format!("failed to write {}: {error}", path.display())))
}

fn remove_tree(directory: &Path) -> io::Result<()> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    match std::fs::remove_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
