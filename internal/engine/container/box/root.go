package box

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Root describes the root file system of a container.
type Root struct {
	Image string   // file of an EROFS file system
	Dir   string   // an empty directory of a local file system, for the writable layer
	First int      // the user of this machine that is user 0 of the container
	Users *os.File // the user namespace of the container's users
}

// Layer is the directory of the changes below Root.Dir: an upper directory of overlayfs, with whiteouts as devices 0/0
// and with the extended attributes trusted.overlay.*. Owners are those of the container.
const Layer = "upper"

// Mount returns the file system as a detached mount: the image, and over it a layer for changes. The process needs
// CAP_SYS_ADMIN on this machine. The mount lasts until the container that gets it has ended.
func (r Root) Mount() (*os.File, error) {
	type result struct {
		f   *os.File
		err error
	}
	done := make(chan result, 1)
	go func() {
		// The layers need a place that overlayfs finds by a path. It is in a mount namespace of this thread alone,
		// which ends with the goroutine: it is never unlocked.
		runtime.LockOSThread()
		f, err := r.mount()
		done <- result{f, err}
	}()
	got := <-done
	return got.f, got.err
}

func (r Root) mount() (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return nil, errors.Wrapf(err, "make a mount namespace")
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, errors.Wrapf(err, "separate the mount namespace")
	}
	lower, layers := filepath.Join(r.Dir, "lower"), filepath.Join(r.Dir, "layers")
	files := filepath.Join(r.Dir, "files")
	for _, dir := range []string{lower, layers, files} {
		if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
			return nil, errors.Wrapf(err, "create a mount point")
		}
	}
	image, err := mountImage(r.Image)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	if err := r.place(image, lower); err != nil {
		return nil, err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, files, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, errors.Wrapf(err, "open the writable layer")
	}
	writable := os.NewFile(uintptr(fd), files)
	defer writable.Close()
	if err := r.place(writable, layers); err != nil {
		return nil, err
	}
	upper, work := filepath.Join(layers, Layer), filepath.Join(layers, "work")
	for _, dir := range []string{upper, work} {
		if err := os.Mkdir(filepath.Join(files, filepath.Base(dir)), 0o755); err != nil && !os.IsExist(err) {
			return nil, errors.Wrapf(err, "create the writable layer")
		}
	}
	if err := r.become(); err != nil {
		return nil, err
	}
	return overlay(lower, upper, work)
}

// become makes this thread create files as user 0 of the container: overlayfs works in the writable layer as the user
// who mounts it, and the layer can hold no files of users that the container does not have.
func (r Root) become() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return errors.Wrapf(err, "read the capabilities")
	}
	if err := errors.Join(unix.Setfsgid(r.First), unix.Setfsuid(r.First)); err != nil {
		return errors.Wrapf(err, "become the container's user")
	}
	// The change of the user has taken those capabilities that concern files.
	for i := range data {
		data[i].Effective = data[i].Permitted
	}
	return errors.Wrapf(unix.Capset(&head, &data[0]), "keep the capabilities")
}

// place maps the owners of a detached mount, and attaches it to a directory.
func (r Root) place(mount *os.File, dir string) error {
	err := unix.MountSetattr(int(mount.Fd()), "", unix.AT_EMPTY_PATH,
		&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(r.Users.Fd())})
	if err != nil {
		return errors.Wrapf(err, "map the owners of files in %s", mount.Name())
	}
	err = unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
	return errors.Wrapf(err, "mount %s", mount.Name())
}

// overlay returns a detached mount of a writable directory over another one. Nothing of it is flushed to the disk on
// request, since the writable layer ends with the container.
func overlay(lower, upper, work string) (*os.File, error) {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, errors.Wrapf(err, "open overlayfs")
	}
	defer unix.Close(fs)
	for _, o := range [][2]string{{"lowerdir", lower}, {"upperdir", upper}, {"workdir", work}} {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return nil, errors.Wrapf(err, "set %s of overlayfs", o[0])
		}
	}
	if err := unix.FsconfigSetFlag(fs, "volatile"); err != nil {
		return nil, errors.Wrapf(err, "set volatile of overlayfs")
	}
	return mounted(fs, "overlayfs", unix.MOUNT_ATTR_NODEV)
}

func mounted(fs int, name string, flags int) (*os.File, error) {
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, errors.Wrapf(err, "create %s", name)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, flags)
	if err != nil {
		return nil, errors.Wrapf(err, "mount %s", name)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// mountImage returns a detached mount of an EROFS file. Linux 6.12 mounts the file itself; earlier kernels need a loop
// device.
func mountImage(path string) (*os.File, error) {
	f, err := mountErofs(path)
	if err == nil || !errors.Is(err, unix.ENOTBLK) && !errors.Is(err, unix.EINVAL) {
		return f, err
	}
	loop, err := attachLoop(path)
	if err != nil {
		return nil, err
	}
	defer loop.Close() // the mount keeps it attached
	return mountErofs(loop.Name())
}

func mountErofs(source string) (*os.File, error) {
	fs, err := unix.Fsopen("erofs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, errors.Wrapf(err, "open EROFS")
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "source", source); err != nil {
		return nil, errors.Wrapf(err, "set the source of EROFS")
	}
	// Otherwise the kernel would open a loop device for writing, too.
	if err := unix.FsconfigSetFlag(fs, "ro"); err != nil {
		return nil, errors.Wrapf(err, "set ro of EROFS")
	}
	return mounted(fs, "EROFS of "+source, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NODEV)
}

// loopTries is how often a free loop device is looked for: others may take it meanwhile.
const loopTries = 20

// attachLoop returns an open loop device of a file. The kernel frees it with its last user.
func attachLoop(path string) (*os.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, errors.Wrapf(err, "open an image")
	}
	defer file.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Wrapf(err, "open the control of loop devices")
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(file.Fd()),
		Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR}}
	for range loopTries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, errors.Wrapf(err, "find a loop device")
		}
		device, err := os.OpenFile("/dev/loop"+strconv.Itoa(n), os.O_RDONLY, 0)
		if err != nil {
			return nil, errors.Wrapf(err, "open a loop device")
		}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		_ = device.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, errors.Wrapf(err, "configure a loop device")
		}
	}
	return nil, errors.Newf(errors.Exhausted, "no loop device is free")
}
