//! May hardware deliver interrupts of devices past KVM on this machine, and whose hardware?

use std::path::Path;
use tandem_bpf::host::intf;

/// Parameters of the KVM modules that say so, and who posts then.
const POSTING: [(&str, u32); 2] = [
    ("kvm_intel/parameters/enable_apicv", intf::posted_by_POSTED_BY_INTEL),
    ("kvm_amd/parameters/avic", intf::posted_by_POSTED_BY_AMD),
];
/// And whether they do it for devices that are passed through; older kernels do not ask.
const OF_DEVICES: &str = "enable_device_posted_irqs";

/// By the parameters of KVM below `root`, and by whether some device is there to be passed through (`/dev/vfio`).
pub(crate) fn posted_by(root: &Path) -> u32 {
    let devices = std::fs::read_dir(root.join("dev/vfio")).into_iter().flatten().flatten();
    // The container is always there.
    if !devices.into_iter().any(|device| device.file_name() != "vfio") {
        return intf::posted_by_POSTED_BY_NONE;
    }
    let posts = |(name, _): &&(&str, u32)| {
        let of_devices = Path::new(name).with_file_name(OF_DEVICES);
        is_on(root, Path::new(name)) == Some(true) && is_on(root, &of_devices) != Some(false)
    };
    POSTING.iter().find(posts).map_or(intf::posted_by_POSTED_BY_NONE, |(_, by)| *by)
}

/// Is a parameter of a kernel module below `root` on, by `MODULE/parameters/NAME`? None: there is no such parameter.
pub(crate) fn is_on(root: &Path, parameter: &Path) -> Option<bool> {
    let text = std::fs::read_to_string(root.join("sys/module").join(parameter)).ok()?;
    Some(matches!(text.trim(), "Y" | "1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(files: &[(&str, &str)]) -> u32 {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        posted_by(dir.path())
    }

    #[test]
    fn hardware_posts_only_where_it_may_and_a_device_is_there() {
        let (container, group) = (("dev/vfio/vfio", ""), ("dev/vfio/12", ""));
        let (intel, amd) = (
            ("sys/module/kvm_intel/parameters/enable_apicv", "Y\n"),
            ("sys/module/kvm_amd/parameters/avic", "1\n"),
        );
        assert_eq!(on(&[]), intf::posted_by_POSTED_BY_NONE);
        assert_eq!(on(&[container, intel]), intf::posted_by_POSTED_BY_NONE);
        assert_eq!(on(&[container, group]), intf::posted_by_POSTED_BY_NONE);
        assert_eq!(on(&[container, group, intel]), intf::posted_by_POSTED_BY_INTEL);
        assert_eq!(on(&[container, group, amd]), intf::posted_by_POSTED_BY_AMD);
        let not_of_devices = ("sys/module/kvm_intel/parameters/enable_device_posted_irqs", "N\n");
        assert_eq!(on(&[container, group, intel, not_of_devices]), intf::posted_by_POSTED_BY_NONE);
    }
}
