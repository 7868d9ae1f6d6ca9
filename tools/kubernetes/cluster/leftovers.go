package cluster

import (
	"context"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// group is the cgroup of the cluster, in each hierarchy. Tests look for groups of sandboxes, whose names begin with
// harvest.
const group = "cluster-of-harvest"

// lockFile is held while there is a cluster. It contains the directory of the cluster.
const lockFile = "/run/harvest-kubernetes.lock"

// endTime is how long killed processes and their cgroups may take to disappear.
const endTime = time.Minute

// take locks the machine for a cluster in dir, and removes the leftovers of the last one.
func take(ctx context.Context, dir string) (*os.File, error) {
	lock, err := os.OpenFile(lockFile, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, errors.Wrapf(err, "lock the machine's cluster")
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		err = errors.Explainf(err, errors.Conflict, "another process has a cluster on this machine")
		return nil, errors.Remedy(err, "wait for its end: fuser %s prints its number", lockFile)
	}
	left, err := os.ReadFile(lockFile)
	if err == nil && len(left) > 0 {
		err = clean(ctx, string(left))
	}
	if err == nil {
		err = os.WriteFile(lockFile, []byte(dir), 0o600)
	}
	if err != nil {
		_ = lock.Close()
		return nil, errors.Wrapf(err, "remove the last cluster")
	}
	return lock, nil
}

// Clean removes the leftovers of a cluster whose process was killed. It returns an error if that process still runs.
func Clean(ctx context.Context) error {
	lock, err := take(ctx, "")
	if err != nil {
		return err
	}
	return errors.Wrapf(lock.Close(), "unlock the machine's cluster")
}

// clean kills the processes of the cluster in dir, and removes its cgroups, mounts, network interfaces and files.
func clean(ctx context.Context, dir string) error {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
		return errors.Errorf("%q is not the directory of a cluster", dir)
	}
	if err := removeGroups(); err != nil {
		return err
	}
	err := errors.Join(unmountBelow(dir), removeInterfaces(ctx), removeFixed(dir))
	if err != nil {
		return err // without this, the removal might reach the files of a mount
	}
	return errors.Wrapf(os.RemoveAll(dir), "remove the cluster's files")
}

// fixed are the directories outside that of the cluster whose names are in the programs: of sockets, results, device
// plugins and links to logs.
var fixed = []string{"/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers"}

// madeFile is the file of a cluster that lists the directories in fixed that did not exist before it.
const madeFile = "made"

// noteFixed notes the directories that clean may remove. Those of another cluster or container runtime stay.
func (c *Cluster) noteFixed() error {
	var made []string
	for _, dir := range fixed {
		if _, err := os.Lstat(dir); errors.IsNotExist(err) {
			made = append(made, dir)
		}
	}
	err := os.WriteFile(c.path(madeFile), []byte(strings.Join(made, "\n")), 0o600)
	return errors.Wrapf(err, "note the directories of the cluster")
}

// removeFixed removes the directories that the cluster in dir has made.
func removeFixed(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, madeFile))
	if errors.IsNotExist(err) {
		return nil
	}
	for _, made := range strings.Fields(string(b)) {
		if slices.Contains(fixed, made) {
			err = errors.Join(err, os.RemoveAll(made))
		}
	}
	return errors.Wrapf(err, "remove the directories of the cluster")
}

const groups = "/sys/fs/cgroup"

// unified returns the root of cgroups of version 2.
func unified() string {
	if hybrid := filepath.Join(groups, "unified"); isUnified(hybrid) {
		return hybrid
	}
	return groups
}

func isUnified(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cgroup.controllers"))
	return err == nil
}

// processGroup is the cgroup of the components. Version 2 can start a process in a cgroup, and kill all processes of
// one.
func processGroup() string { return filepath.Join(unified(), group, "components") }

// hierarchies returns the roots of all hierarchies of cgroups.
func hierarchies() ([]string, error) {
	if isUnified(groups) {
		return []string{groups}, nil
	}
	mounts, err := mountPoints("cgroup", "cgroup2")
	if err == nil && !slices.Contains(mounts, unified()) {
		err = errors.Newf(errors.Unsupported, "cgroups of version 2 are not mounted below %s", groups)
	}
	return mounts, err
}

// makeGroups makes the cgroup of the cluster in all hierarchies.
func makeGroups() error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		if err := os.Mkdir(filepath.Join(root, group), 0o755); err != nil {
			return errors.Wrapf(err, "make a cgroup")
		}
		if root == filepath.Join(groups, "cpuset") { // a new cpuset has no processors
			if err := inheritProcessors(root); err != nil {
				return err
			}
		}
	}
	return errors.Wrapf(os.Mkdir(processGroup(), 0o755), "make a cgroup")
}

func inheritProcessors(root string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(root, group, name), b, 0o600)
		}
		if err != nil {
			return errors.Wrapf(err, "set the processors of a cgroup")
		}
	}
	return nil
}

// removeGroups kills all processes of the cluster, and removes its cgroups.
func removeGroups() error {
	top := filepath.Join(unified(), group)
	err := os.WriteFile(filepath.Join(top, "cgroup.kill"), []byte("1"), 0o600)
	if err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "kill the processes of the cluster")
	}
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		if err := removeGroup(filepath.Join(root, group)); err != nil {
			return err
		}
	}
	return nil
}

// removeGroup removes a cgroup and those below it, when their processes have ended.
func removeGroup(top string) error {
	for deadline := time.Now().Add(endTime); ; <-time.After(10 * time.Millisecond) {
		var dirs []string
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		})
		for _, dir := range slices.Backward(dirs) {
			if err == nil {
				err = os.Remove(dir)
			}
		}
		if errors.IsNotExist(err) && len(dirs) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Wrapf(err, "remove the cgroup %s", top)
		}
	}
}

// mountPoints returns the mount points of file systems of the types, or all without types.
func mountPoints(types ...string) ([]string, error) {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, errors.Wrapf(err, "list the mounts")
	}
	var all []string
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) > 2 && (len(types) == 0 || slices.Contains(types, fields[2])) {
			all = append(all, strings.NewReplacer(`\040`, " ", `\134`, `\`).Replace(fields[1]))
		}
	}
	return all, nil
}

// unmountBelow unmounts everything below dir, the last mount first.
func unmountBelow(dir string) error {
	mounts, err := mountPoints()
	if err != nil {
		return err
	}
	for _, mount := range slices.Backward(mounts) {
		if strings.HasPrefix(mount, dir+"/") {
			if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
				return errors.Wrapf(err, "unmount %s", mount)
			}
		}
	}
	return nil
}

// makeNodeBridge makes the interface with the node's address. A node needs one that is not loopback.
func makeNodeBridge(ctx context.Context) error {
	for _, args := range [][]string{{"link", "add", nodeBridge, "type", "bridge"},
		{"addr", "add", nodeAddress + "/32", "dev", nodeBridge}, {"link", "set", nodeBridge, "up"}} {
		if err := ip(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// removeInterfaces removes the bridges. Those of pods end with the pods' network namespaces, which only mounts keep.
func removeInterfaces(ctx context.Context) error {
	all, err := net.Interfaces()
	if err != nil {
		return errors.Wrapf(err, "list the network interfaces")
	}
	for _, i := range all {
		if i.Name == nodeBridge || i.Name == podBridge {
			err = errors.Join(err, ip(ctx, "link", "del", i.Name))
		}
	}
	return err
}

func ip(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput()
	return errors.Wrapf(err, "ip %s: %s", strings.Join(args, " "), out)
}
