// Package privilege lets a process give up the capabilities that it does not use.
package privilege

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Server lists the capabilities of a server that root started. Processes that it starts have no others.
var Server = append([]int{
	unix.CAP_SYS_ADMIN,        // mounts that map the owners of volumes, live mounts of S3
	unix.CAP_NET_BIND_SERVICE, // ports below 1024
	unix.CAP_SETPCAP,          // keepers give up what only the server uses
}, Keeper...)

// Keeper lists the capabilities of a keeper that root started.
var Keeper = []int{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, // files of volumes, of any owner
	unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SETFCAP, // write the maps of gVisor's user namespaces
}

// Container lists the capabilities of a keeper of a container that root started.
var Container = append([]int{
	unix.CAP_SYS_ADMIN, // mounts of images with mapped owners, interfaces in the container's network
}, Keeper...)

// Keep gives up all capabilities of this process but those in keep, for good: programs that it starts cannot get
// them back. Capabilities that the process lacks stay lacking. Without CAP_SETPCAP, it only gives up its own.
// Keep does nothing for an ordinary user.
func Keep(keep []int) error {
	if os.Geteuid() != 0 {
		return nil
	}
	var mask uint64
	for _, c := range keep {
		mask |= 1 << c
	}
	if has(unix.CAP_SETPCAP) {
		for c := range lastCapability() + 1 {
			if bound, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0); mask&(1<<c) != 0 ||
				err == nil && bound == 0 {
				continue // a call that stops all threads is not needed
			}
			if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c),
				0); errno != 0 {
				return errors.Wrapf(errno, "give up capability %d", c)
			}
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return errors.Wrapf(err, "read capabilities")
	}
	for i := range data {
		part := uint32(mask >> (32 * i))
		data[i] = unix.CapUserData{Effective: data[i].Effective & part, Permitted: data[i].Permitted & part}
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return errors.Wrapf(errno, "give up capabilities")
	}
	return nil
}

// has reports whether the process has an effective capability.
func has(capability int) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[capability/32].Effective&(1<<(capability%32)) != 0
}

// lastCapability returns the highest capability that the kernel knows.
func lastCapability() int {
	b, _ := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
		return n
	}
	return unix.CAP_LAST_CAP
}
