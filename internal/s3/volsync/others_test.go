package volsync

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// sourceTree is a copy of real sources with additions: links of both kinds, modes, empty directories, attributes, odd
// names. HARVEST_TEST_TREE names another tree, such as all of Go with its 15,000 files.
func sourceTree(t *testing.T) string {
	t.Helper()
	from := os.Getenv("HARVEST_TEST_TREE")
	if from == "" {
		from = filepath.Join(strings.TrimSpace(tool(t, nil, testenv.RequireTool(t, "go", "golang"), "env", "GOROOT")),
			"src", "net")
	}
	dir := filepath.Join(t.TempDir(), "tree")
	tool(t, nil, testenv.RequireTool(t, "cp", "coreutils"), "-a", from, dir)
	write(t, dir, "extras/a b\tc", "odd")
	write(t, dir, "extras/run.sh", "#!/bin/sh\n")
	must(t, os.Chmod(filepath.Join(dir, "extras/run.sh"), 0o751))
	must(t, os.Symlink("../extras/run.sh", filepath.Join(dir, "extras/link")))
	must(t, os.Symlink("/etc/shadow", filepath.Join(dir, "extras/shadow")))
	must(t, os.Link(filepath.Join(dir, "extras/run.sh"), filepath.Join(dir, "extras/twin")))
	must(t, os.MkdirAll(filepath.Join(dir, "extras/hollow/within"), 0o700))
	must(t, unix.Setxattr(filepath.Join(dir, "extras/run.sh"), "user.colour", []byte("blue"), 0))
	write(t, dir, "extras/large", strings.Repeat("0123456789abcdef", 20<<16)+"!") // 20 MiB and a byte: 2 parts
	must(t, os.Chmod(filepath.Join(dir, "extras/large"), 0o640))
	must(t, os.Chtimes(filepath.Join(dir, "extras/large"), someTime, someTime))
	return dir
}

func tool(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), append(env, "AWS_CA_BUNDLE=")...) // which old versions of rclone cannot use
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %.2000s", filepath.Base(args[0]), err, out)
	}
	return string(out)
}

// TestOthersSeeTheSame checks that rsync finds no difference in a tree after a sync up and down, and that rclone and
// the AWS command line see the objects as its files.
// mission: 2.1, 3.2, D1, D2
func TestOthersSeeTheSame(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	rsync, rclone, aws := testenv.RequireTool(t, "rsync", "rsync"), testenv.RequireTool(t, "rclone", "rclone"),
		testenv.RequireTool(t, "aws", "awscli")
	dir, loc := sourceTree(t), location(t)
	b := openBucket(t, loc)
	up := mustSync(t, dir, b, Options{Direction: plan.Up, State: t.TempDir()})
	t.Log(up)
	back := t.TempDir()
	t.Log(mustSync(t, back, b, Options{Direction: plan.Down, State: t.TempDir(), Owners: true}))
	must(t, os.Chmod(back, 0o755)) // a sync does not restore the root of a volume
	if diff := tool(t, nil, rsync, "-aHXn", "--checksum", "--delete", "--itemize-changes", dir+"/",
		back+"/"); differs(diff) {
		t.Errorf("rsync sees differences:\n%.3000s", diff)
	}
	files := regularFiles(t, dir)
	if int64(len(files)) > up.Files {
		t.Errorf("%d of %d files went up", up.Files, len(files))
	}
	if e, err := b.Stat(t.Context(), "extras/large"); err != nil || !strings.HasSuffix(e.ETag, "-2") {
		t.Errorf("the large file is %+v, %v, not of two parts", e, err)
	}
	place := loc.Bucket + "/" + loc.Prefix
	byRclone := t.TempDir()
	tool(t, []string{"RCLONE_CONFIG_S3_TYPE=s3", "RCLONE_CONFIG_S3_PROVIDER=Other",
		"RCLONE_CONFIG_S3_ENDPOINT=" + loc.Endpoint, "RCLONE_CONFIG_S3_REGION=us-east-1",
		"RCLONE_CONFIG_S3_ACCESS_KEY_ID=" + s3test.AccessKey, "RCLONE_CONFIG_S3_SECRET_ACCESS_KEY=" + s3test.SecretKey},
		rclone, "copy", "--config=/dev/null", "--metadata", "--transfers", "16", "s3:"+place, byRclone)
	byAWS := t.TempDir()
	tool(t, []string{"AWS_ACCESS_KEY_ID=" + s3test.AccessKey, "AWS_SECRET_ACCESS_KEY=" + s3test.SecretKey,
		"AWS_DEFAULT_REGION=us-east-1", "AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null"},
		aws, "--endpoint-url", loc.Endpoint, "s3", "cp", "--quiet", "--recursive", "s3://"+place, byAWS)
	for name, got := range map[string]string{"rclone": byRclone, "aws": byAWS} {
		for _, path := range files {
			want, err := os.ReadFile(filepath.Join(dir, path))
			must(t, err)
			if path == "extras/a b\tc" { // a control character has an escape in its key
				path = "extras/a b%~09c"
			}
			if have, err := os.ReadFile(filepath.Join(got, path)); err != nil || string(have) != string(want) {
				t.Errorf("%s reads %q as %d bytes, not %d: %v", name, path, len(have), len(want), err)
			}
		}
	}
	sameMetadata(t, dir, byRclone, files)
}

// sameMetadata compares the metadata of files that other programs restored.
func sameMetadata(t *testing.T, dir, got string, files []string) {
	t.Helper()
	for _, path := range files {
		want, err := os.Lstat(filepath.Join(dir, path))
		must(t, err)
		have, err := os.Lstat(filepath.Join(got, strings.ReplaceAll(path, "\t", "%~09")))
		if err != nil {
			t.Error(err)
			continue
		}
		if have.Mode() != want.Mode() || !have.ModTime().Equal(want.ModTime()) {
			t.Errorf("%q is %v of %v, want %v of %v", path, have.Mode(), have.ModTime(), want.Mode(), want.ModTime())
		}
	}
}

// differs reports whether rsync's list has anything but the root.
func differs(list string) bool {
	for line := range strings.Lines(list) {
		if !strings.HasSuffix(strings.TrimSpace(line), " ./") {
			return true
		}
	}
	return false
}

func regularFiles(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			path, err = filepath.Rel(dir, path)
			all = append(all, path)
		}
		return err
	}))
	return all
}
