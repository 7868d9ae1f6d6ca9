package s3

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// TestSandboxS3 checks that a sandbox's files come from S3 before its first command and go there when it ends, in any
// way, and that unsent files are sent later.
// mission: 1.3, 1.5, 2.7, 2.8, 3.1, 3.2, 3.3, 3.4, 3.5, 3.6, 5.4, 8.5, 9.3, A8, D2, D3
func TestSandboxS3(t *testing.T) {
	t.Parallel()
	s3 := host.NewS3(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Env.Setenv("HARVEST_S3_ENDPOINT", "http://"+s3.Address)
	h.Env.Setenv("HARVEST_S3_PATH_STYLE", "true")
	get := func(ref string) (sb api.Sandbox) {
		t.Helper()
		if err := json.Unmarshal([]byte(h.Must("sandbox", "get", ref, "-o", "json")), &sb); err != nil {
			t.Fatal(err)
		}
		return sb
	}
	fails := func(want string, args ...string) {
		t.Helper()
		if _, stderr, code := h.Run(args...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%q: %d, %s; want %q", args, code, stderr, want)
		}
	}
	place := "s3://" + s3.Bucket + "/work:/data:init:sync"
	fails(`there is no secret "aws"`, "sandbox", "create", "--s3", place)
	h.Must("secret", "set", "aws", "AWS_ACCESS_KEY_ID="+s3test.AccessKey, "AWS_SECRET_ACCESS_KEY="+s3test.SecretKey,
		"AWS_REGION=us-east-1")
	fails("there is no bucket nowhere", "sandbox", "create", "--s3", "s3://nowhere/x:/data:init")
	fails("step: s3 init", "sandbox", "create", "--s3", "s3://nowhere/x:/data:init")
	// One key that cannot become a file: the sandbox is not created with the others.
	s3.Put("odd/a.txt", "one")
	s3.Put("odd/%~41", "its key is no path")
	fails(`1 files could not be copied, such as "%~41"`, "sandbox", "create", "--name", "odd", "--s3",
		"s3://"+s3.Bucket+"/odd:/data:init")
	fails("step: s3 init", "sandbox", "create", "--name", "odd", "--s3", "s3://"+s3.Bucket+"/odd:/data:init")
	if volumes, boxes := h.Must("volume", "ls", "-o", "name"),
		h.Must("sandbox", "ls", "-o", "name"); volumes != "" || boxes != "" {
		t.Errorf("sandboxes that could not be made left the volumes %q and the sandboxes %q", volumes, boxes)
	}
	// Objects of other programs, within the prefix and beside it.
	for path, content := range map[string]string{"work/a/b.txt": "one", "other.txt": "not ours"} {
		path = filepath.Join(s3.Dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out := h.Must("run", "--s3", place, "--", "sh", "-c",
		"cat /data/a/b.txt && ls /data && printf two > /data/c.txt && chmod 750 /data/c.txt"); out != "onea" {
		t.Errorf("the first command sees %q", out)
	}
	s3.Wait("work/c.txt", "two")
	// The same volume again, on demand, and by request at the end.
	h.Must("sandbox", "create", "--name", "one", "--s3", "s3://"+s3.Bucket+"/work:/data:init")
	one := get("one")
	if !slices.ContainsFunc(one.Stages, func(s api.Stage) bool { return s.Name == "s3 init" }) || one.S3 == nil ||
		!strings.HasPrefix(one.S3.Volume, "s3-"+s3.Bucket+"-") {
		t.Errorf("it is %+v", one)
	}
	if out := h.Must("sandbox", "exec", "one", "--", "stat", "-c", "%a %s", "/data/c.txt"); out != "750 3" {
		t.Errorf("restored as %q", out)
	}
	h.Must("sandbox", "exec", "one", "--", "sh", "-c", "printf three > /data/d.txt")
	// The sandbox does not contain the credentials: no process has them, and no file, including those of the volume.
	// so that the search does not find itself
	hidden := func(key string) string { return "[" + key[:1] + "]" + key[1:] }
	look := "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; cat /proc/mounts; echo searched: $(grep -rl three /data); " +
		"found=$(grep -rlE '" + hidden(s3test.SecretKey) + "|" + hidden(s3test.AccessKey) + "' /data /root /home /tmp /run /etc /var /opt /srv); echo \"found:$found\""
	if got := h.Must("sandbox", "exec", "one", "--", "sh", "-c", look); strings.Contains(got, s3test.SecretKey) ||
		strings.Contains(got, s3test.AccessKey) ||
		!strings.Contains(got, "searched: /data/d.txt\n") || !strings.HasSuffix(got, "\nfound:") {
		t.Errorf("looking for the credentials in the sandbox finds %s", got)
	}
	h.Must("sandbox", "create", "--name", "often", "--s3", "s3://"+s3.Bucket+"/often:/data:every=5s")
	h.Must("sandbox", "exec", "often", "--", "sh", "-c", "printf while > /data/working.txt")
	s3.Wait("often/working.txt", "while")
	h.Must("sandbox", "rm", "often")
	h.Must("sandbox", "sync", "one")
	s3.Wait("work/d.txt", "three")
	// Objects of other programs are downloaded.
	for _, way := range []string{"--down", "--both"} {
		s3.Put("work/"+way+".txt", "by others")
		h.Must("sandbox", "sync", "one", way)
		if out, _, code := h.Run("sandbox", "exec", "one", "--", "cat", "/data/"+way+".txt"); code != 0 ||
			out != "by others" {
			t.Errorf("%s brings %q", way, out)
		}
	}
	h.Must("sandbox", "exec", "one", "--", "sh", "-c", "printf four > /data/d.txt")
	// Another sandbox sees the volume's current files, not the bucket's.
	if out := h.Must("run", "--s3", place[:len(place)-len(":sync")], "--", "cat", "/data/d.txt"); out != "four" {
		t.Errorf("beside another sandbox the file is %q", out)
	}
	h.Must("sandbox", "rm", "--sync", "one")
	s3.Wait("work/d.txt", "four")
	// Ends that no client requested.
	h.Must("sandbox", "create", "--name", "quiet", "--idle-timeout", "10s", "--s3",
		"s3://"+s3.Bucket+"/quiet:/data:sync")
	h.Must("sandbox", "exec", "quiet", "--", "sh", "-c", "printf idle > /data/q.txt")
	h.Must("sandbox", "create", "--name", "short", "--timeout", "20s", "--s3", place)
	h.Must("sandbox", "exec", "short", "--", "sh", "-c", "printf five > /data/e.txt")
	h.Must("sandbox", "create", "--name", "greedy", "--memory", "64MiB", "--s3",
		"s3://"+s3.Bucket+"/greedy:/data:init:sync")
	_, _, _ = h.Run("sandbox", "exec", "greedy", "--", "sh", "-c",
		"printf six > /data/f.txt; exec python3 -c 'x = bytearray(1 << 30)'")
	s3.Wait("greedy/f.txt", "six")
	s3.Wait("work/e.txt", "five")
	s3.Wait("quiet/q.txt", "idle")
	// S3 is down at the end, and for the next server.
	h.Must("sandbox", "create", "--name", "two", "--s3", place)
	h.Must("sandbox", "exec", "two", "--", "sh", "-c", "printf seven > /data/g.txt")
	two := get("two")
	s3.Stop()
	if _, stderr, code := h.Run("sandbox", "rm", "--sync", "two"); code != 0 ||
		!strings.Contains(stderr, "is retried") {
		t.Errorf("its end: %d, %s", code, stderr)
	}
	if two = get(two.ID); two.Status != "terminated" || two.S3.SyncError == "" {
		t.Errorf("it is %s, %+v", two.Status, two.S3)
	}
	fails("the download from S3 failed", "sandbox", "create", "--s3", place)
	h.Must("down")
	s3.Start()
	h.Must("sandbox", "ls")
	s3.Wait("work/g.txt", "seven")
	testenv.Eventually(t, "the files are stored, and the record has no error",
		func() bool { return get(two.ID).S3.SyncError == "" })
	if out := h.Must("run", "--s3", place, "--", "cat", "/data/g.txt"); out != "seven" {
		t.Errorf("afterwards the file is %q", out)
	}
	if log := h.Log(); strings.Contains(log, s3test.SecretKey) {
		t.Error("the secret key is in the log")
	}
}

// TestModalSandboxS3 checks that Modal's route fills a sandbox's volume and uploads its changes on request, with the
// credentials of the account's secret.
// mission: 1.3, 2.8, 3.1, 6.1, 6.2, 6.4
func TestModalSandboxS3(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	s3 := host.NewS3(t)
	h := host.New(t, "fake", nil)
	h.Env.Setenv("HARVEST_S3_ENDPOINT", "http://"+s3.Address)
	h.Env.Setenv("HARVEST_S3_PATH_STYLE", "true")
	h.Must("secret", "set", "mine", "AWS_ACCESS_KEY_ID="+s3test.AccessKey, "AWS_SECRET_ACCESS_KEY="+s3test.SecretKey,
		"AWS_REGION=us-east-1")
	call := func(method, path, body string) (made api.ModalSandbox) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://harvest"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := h.OverSocket().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		if err := json.Unmarshal(text, &made); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: %s, %s", method, path, resp.Status, text)
		}
		return made
	}
	for prefix, c := range map[string]struct {
		fields    string
		at        string // where the volume is
		init, end bool
	}{
		"both":        {`"init_from_s3":true,"sync_on_terminate":true`, api.ModalMountPath, true, true},
		"of-a-volume": {`"init_from_s3":true,"sync_on_terminate":true,"volume_name":"files","volume_mount_path":"/data"`, "/data", true, true},
		"at-a-path":   {`"init_from_s3":true,"sync_on_terminate":true,"s3_mount_path":"/s3"`, "/s3", true, true},
		"only-init":   {`"init_from_s3":true`, api.ModalMountPath, true, false},
		"only-sync":   {`"sync_on_terminate":true`, api.ModalMountPath, false, true},
	} {
		s3.Put(prefix+"/in/a.txt", "from the bucket")
		made := call(http.MethodPost, api.ModalSandboxes,
			`{"s3_bucket_name":"`+s3.Bucket+`","s3_key_prefix":"`+prefix+`","s3_secret":"mine",`+c.fields+`}`)
		if made.Status != "running" || made.S3Bucket != s3.Bucket || made.S3Prefix != prefix || made.S3Path != c.at {
			t.Errorf("%s: %+v", prefix, made)
		}
		read := map[bool]string{true: "from the bucket"}
		if out := h.Must("sandbox", "exec", "--workdir", c.at, made.SandboxID, "--", "sh", "-c",
			"cat in/a.txt 2>/dev/null; printf 'from the sandbox' > out.txt"); out != read[c.init] {
			t.Errorf("%s: the sandbox has %q, want %q", prefix, out, read[c.init])
		}
		if ended := call(http.MethodDelete, strings.Replace(api.ModalSandboxed, "{id}", made.SandboxID, 1),
			""); ended.Status != "terminated" || ended.SyncError != "" {
			t.Errorf("%s: at the end it is %+v", prefix, ended)
		}
		written := map[bool]string{true: "from the sandbox"}
		if got := s3.Get(prefix + "/out.txt"); got != written[c.end] ||
			s3.Get(prefix+"/in/a.txt") != "from the bucket" {
			t.Errorf("%s: the bucket has %q, want %q", prefix, got, written[c.end])
		}
	}
}

// TestServerDiesWhileItSends checks that a sandbox has ended, and that the next server uploads its volume, if the
// server is killed during the upload.
// mission: 2.8, 5.4, A8
func TestServerDiesWhileItSends(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	s3 := host.NewS3(t)
	h := host.New(t, "fake", nil)
	h.Env.Setenv("HARVEST_S3_ENDPOINT", "http://"+s3.Address)
	h.Env.Setenv("HARVEST_S3_PATH_STYLE", "true")
	h.Must("secret", "set", "aws", "AWS_ACCESS_KEY_ID="+s3test.AccessKey, "AWS_SECRET_ACCESS_KEY="+s3test.SecretKey,
		"AWS_REGION=us-east-1")
	h.Must("sandbox", "create", "--name", "box", "--s3", "s3://"+s3.Bucket+"/work:/data:sync")
	get := func(ref string) (sb api.Sandbox) {
		t.Helper()
		if err := json.Unmarshal([]byte(h.Must("sandbox", "get", ref, "-o", "json")), &sb); err != nil {
			t.Fatal(err)
		}
		return sb
	}
	box := get("box")
	file := filepath.Join(t.TempDir(), "a.txt")
	if err := os.WriteFile(file, []byte("left behind"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.Must("volume", "cp", file, box.S3.Volume+":/")
	silent := make(chan string, 1000)
	s3.Mu.Lock()
	s3.Silent = silent
	s3.Mu.Unlock()
	cmd := h.Command(t.Context(), "sandbox", "rm", "box")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-silent
	if err := syscall.Kill(h.Server().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	s3.Mu.Lock()
	s3.Silent = nil
	s3.Mu.Unlock()
	h.Must("sandbox", "ls")
	s3.Wait("work/a.txt", "left behind")
	testenv.Eventually(t, "the sandbox has ended", func() bool { return !get(box.ID).Ended.IsZero() })
}
