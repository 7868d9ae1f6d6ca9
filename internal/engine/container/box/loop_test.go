package box

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
)

// TestImagesOverLoopDevices checks the way in which kernels before Linux 6.12 mount an image, and that the loop device
// is free after it.
//
// mission: A6
func TestImagesOverLoopDevices(t *testing.T) {
	testenv.Root(t)
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("this machine has no loop devices: load the kernel module loop")
	}
	lib := imagetest.Library(t)
	loop, err := attachLoop(lib.Root(imagetest.Base(t, lib)))
	if err != nil {
		t.Fatal(err)
	}
	mount, err := mountErofs(loop.Name())
	if err != nil {
		t.Fatal(err)
	}
	_ = loop.Close()
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/etc/debian_version", mount.Fd()))
	if err != nil || !strings.HasPrefix(string(text), "12") {
		t.Errorf("got %q, %v", text, err)
	}
	_ = mount.Close()
	testenv.Eventually(t, "the loop device is free", func() bool {
		_, err := os.Stat(filepath.Join("/sys/block", filepath.Base(loop.Name()), "loop"))
		return os.IsNotExist(err)
	})
	if _, err := attachLoop(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a missing image was attached")
	}
	if m, err := mountErofs(os.DevNull); err == nil {
		_ = m.Close()
		t.Error("something else than an image was mounted")
	}
}
