package volsync

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// when answers requests with an error of S3 if the method matches and path and query contain text.
func when(method, text string, status int, code string) func(int, http.ResponseWriter, *http.Request) bool {
	return func(_ int, w http.ResponseWriter, r *http.Request) bool {
		return r.Method == method && strings.Contains(r.URL.Path+"?"+r.URL.RawQuery, text) && xmlFault(w, status, code)
	}
}

// TestRefusedRequests checks that each refusal of the server ends a sync or fails a path, with an explanation.
func TestRefusedRequests(t *testing.T) {
	dir, loc, state := t.TempDir(), location(t), t.TempDir()
	a := between(t, &loc)
	b := openBucket(t, loc)
	write(t, dir, "f", "x")
	write(t, dir, "large", strings.Repeat("0123456789abcdef", 17<<16))
	mustSync(t, dir, b, Options{Direction: plan.Up, State: state})
	for name, c := range map[string]struct {
		fault func(int, http.ResponseWriter, *http.Request) bool
		o     Options
		kind  errors.Kind // of the end; "" if paths fail
	}{
		"manifest":      {when("GET", "manifest", 403, "AccessDenied"), Options{Direction: plan.Down}, errors.Denied},
		"manifest size": {when("HEAD", "manifest", 400, "Odd"), Options{Direction: plan.Down}, errors.Invalid},
		"list": {when("GET", "list-type", 403, "AccessDenied"), Options{Direction: plan.Down, List: true},
			errors.Denied},
		"put manifest": {when("PUT", "manifest", 507, "QuotaExceeded"), Options{Direction: plan.Up},
			errors.Exhausted},
		"overtaken": {when("PUT", "manifest", 412, "PreconditionFailed"), Options{Direction: plan.Up},
			errors.Conflict},
		"begin parts": {when("POST", "uploads=", 403, "AccessDenied"), Options{Direction: plan.Up}, ""},
		"a part":      {when("PUT", "partNumber=2", 403, "AccessDenied"), Options{Direction: plan.Up}, ""},
		"complete":    {when("POST", "uploadId=", 403, "AccessDenied"), Options{Direction: plan.Up}, ""},
		"expired object": {when("PUT", "work/f", 400, "ExpiredToken"), Options{Direction: plan.Up},
			errors.Unauthenticated},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, dir, "f", name)
			write(t, dir, "large", strings.Repeat(fmt.Sprintf("%-16.16s", name),
				17<<16)+name) // no part is like one of another case
			a.reset(c.fault)
			if c.o.Direction == plan.Up {
				c.o.State = t.TempDir()
			}
			tree := openTree(t, dir)
			if c.o.Direction == plan.Down {
				tree = openTree(t, t.TempDir())
			}
			stats, err := Sync(t.Context(), tree, b, c.o)
			if errors.KindOf(err) != c.kind || (err == nil) != (stats.Failed > 0) {
				t.Errorf("%s %+v, %v; want %q", stats, stats.Failures, err, c.kind)
			}
		})
	}
	// If the parts of an upload cannot be listed, a new one begins.
	a.reset(nil)
	e, err := b.Stat(t.Context(), "f")
	must(t, err)
	up, err := b.BeginUpload(t.Context(), "other", e, object.MetaHeader(e), "")
	must(t, err)
	a.reset(when("GET", "uploadId=", 403, "AccessDenied"))
	if again, err := b.BeginUpload(t.Context(), "other", e, object.MetaHeader(e), up.ID); err != nil ||
		again.ID == up.ID ||
		again.ID == "" {
		t.Errorf("another upload: %+v, %v", again, err)
	}
	b.AbortUpload(t.Context(), "other", up.ID)
	a.reset(nil)
	mustSync(t, dir, b, Options{Direction: plan.Up, State: state})
	// A deletion that fails as a whole.
	must(t, os.Remove(filepath.Join(dir, "f")))
	a.reset(when("POST", "delete", 400, "MalformedXML"))
	if _, err := Sync(t.Context(), openTree(t, dir), b,
		Options{Direction: plan.Up, State: state, Mirror: true}); err == nil {
		t.Errorf("a refused deletion: %v", err)
	}
}

func TestSweep(t *testing.T) {
	loc := location(t)
	a := between(t, &loc)
	b := openBucket(t, loc)
	for _, key := range []string{"work/one", "work/two/three", "elsewhere"} {
		_, err := sdkOf(b).CreateMultipartUpload(t.Context(),
			&sdk.CreateMultipartUploadInput{Bucket: &loc.Bucket, Key: &key})
		must(t, err)
	}
	if n, err := b.Sweep(t.Context(), object.Stale); n != 0 || err != nil {
		t.Errorf("swept %d young uploads, %v", n, err)
	}
	if n, err := b.Sweep(t.Context(), 0); n != 2 || err != nil {
		t.Errorf("swept %d, %v, want 2", n, err)
	}
	if begun(t.Context(), b, "work/one") != "" || begun(t.Context(), b, "elsewhere") == "" {
		t.Error("the wrong uploads were swept")
	}
	a.reset(when("GET", "uploads", 403, "AccessDenied"))
	if _, err := b.Sweep(t.Context(), 0); errors.KindOf(err) != errors.Denied {
		t.Errorf("a refused sweep: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Sweep(ctx, 0); errors.KindOf(err) != errors.Canceled {
		t.Errorf("a sweep that was given up: %v", err)
	}
}

// TestSweptLater checks that a later sync removes abandoned uploads of earlier syncs, once a day, and nothing else.
// mission: 2.4, D1
func TestSweptLater(t *testing.T) {
	for _, versioned := range []bool{false, true} {
		t.Run(fmt.Sprintf("versioned=%t", versioned), func(t *testing.T) {
			loc, dir, stateDir := location(t), t.TempDir(), t.TempDir()
			a := between(t, &loc)
			b := openBucket(t, loc)
			under := "work/"
			if versioned {
				under = "work/1700000000/"
			}
			begin := func(key string, age time.Duration) {
				out, err := sdkOf(b).CreateMultipartUpload(t.Context(),
					&sdk.CreateMultipartUploadInput{Bucket: &loc.Bucket, Key: &key})
				must(t, err)
				// The server takes the time from the directory that has the parts.
				place := filepath.Join(s3test.Dir(loc.Bucket), ".sgwtmp", "multipart",
					fmt.Sprintf("%x", sha256.Sum256([]byte(key))), aws.ToString(out.UploadId))
				at := time.Now().Add(-age)
				must(t, os.Chtimes(place, at, at))
			}
			left := func(key string) bool {
				out, err := sdkOf(b).ListMultipartUploads(t.Context(),
					&sdk.ListMultipartUploadsInput{Bucket: &loc.Bucket,
						Prefix: &key})
				must(t, err)
				return len(out.Uploads) > 0
			}
			sync := func() {
				write(t, dir, "f", time.Now().String())
				var stats Stats
				var err error
				if versioned {
					_, stats, err = Save(t.Context(), openTree(t, dir), b, Options{State: stateDir})
				} else {
					stats, err = Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Up, State: stateDir})
				}
				if err != nil || stats.Failed > 0 || stats.Files != 1 {
					t.Fatalf("%s %+v, %v", stats, stats.Failures, err)
				}
			}
			begin(under+"old", object.Stale+time.Hour)
			begin(under+"young", object.Stale-time.Hour)
			begin("elsewhere", object.Stale+time.Hour)
			sync()
			if left(under+"old") || !left(under+"young") || !left("elsewhere") {
				t.Errorf("left: old %t, young %t, elsewhere %t", left(under+"old"), left(under+"young"),
					left("elsewhere"))
			}
			begin(under+"old", object.Stale+time.Hour)
			sync()
			if !left(under + "old") {
				t.Error("it was swept twice in a day")
			}
			marks, err := filepath.Glob(filepath.Join(stateDir, "*", state.Swept))
			if err != nil || len(marks) != 1 {
				t.Fatal(marks, err)
			}
			yesterday := time.Now().Add(-sweepEvery - time.Minute)
			must(t, os.Chtimes(marks[0], yesterday, yesterday))
			// A client that may not list uploads can still sync.
			a.reset(when("GET", "uploads", 403, "AccessDenied"))
			sync()
			a.reset(nil)
			must(t, os.Chtimes(marks[0], yesterday, yesterday))
			mustSync(t, t.TempDir(), b, Options{Direction: plan.Down, State: stateDir})
			if !left(under + "old") {
				t.Error("a restore swept")
			}
			sync()
			if left(under + "old") {
				t.Error("it was not swept a day later")
			}
			// A sync of a whole bucket meets uploads of other programs.
			loc.Prefix = ""
			b, under = openBucket(t, loc), ""
			sync()
			if !left("elsewhere") {
				t.Error("a bucket without a prefix was swept")
			}
		})
	}
}

// TestRefusedVersions checks that versions handle refusals of the server and incomplete versions.
func TestRefusedVersions(t *testing.T) {
	dir, loc := t.TempDir(), location(t)
	a := between(t, &loc)
	b := openBucket(t, loc)
	write(t, dir, "f", "x")
	write(t, dir, "g", "x")
	first, _, err := Save(t.Context(), openTree(t, dir), b, Options{})
	must(t, err)
	for name, c := range map[string]struct {
		fault func(int, http.ResponseWriter, *http.Request) bool
		do    func() error
	}{
		"save": {when("GET", "list-type", 403, "AccessDenied"),
			func() error { _, _, err := Save(t.Context(), openTree(t, dir), b, Options{}); return err }},
		"restore latest": {when("GET", "list-type", 403, "AccessDenied"),
			func() error {
				_, _, err := Restore(t.Context(), openTree(t, dir), b, object.Version{}, Options{})
				return err
			}},
		"restore": {when("HEAD", "manifest", 403, "AccessDenied"),
			func() error { _, _, err := Restore(t.Context(), openTree(t, dir), b, first, Options{}); return err }},
		"whole or not": {when("HEAD", "manifest", 403, "AccessDenied"),
			func() error { _, err := b.Versions(t.Context()); return err }},
		"prune": {when("GET", "list-type", 403, "AccessDenied"),
			func() error { _, err := b.Prune(t.Context(), 1); return err }},
		"delete manifest": {when("POST", "delete", 403, "AccessDenied"),
			func() error { return b.DeleteVersion(t.Context(), first) }},
	} {
		a.reset(c.fault)
		if err := c.do(); errors.KindOf(err) != errors.Denied {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Foreign directories, and unfinished versions.
	a.reset(nil)
	old := time.Now().Add(-48 * time.Hour).Unix()
	for _, key := range []string{"notes/x", "007/x", "latest/x", fmt.Sprintf("%d/f", old),
		fmt.Sprintf("%d/f", time.Now().Unix()-5)} {
		_, err := b.Put(t.Context(), key, []byte("x"), crc64nvme.Checksum([]byte("x")), nil)
		must(t, err)
	}
	deleted, err := b.Prune(t.Context(), 1)
	if err != nil || len(deleted) != 1 || deleted[0].Time.Unix() != old || deleted[0].Whole {
		t.Errorf("pruned %+v, %v", deleted, err)
	}
	if all, err := b.Versions(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("left %+v, %v", all, err)
	}
	// Files that cannot be copied are uploaded.
	write(t, dir, "f", "changed")
	a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		return r.Header.Get("X-Amz-Copy-Source") != "" && xmlFault(w, 403, "AccessDenied")
	})
	second, stats, err := Save(t.Context(), openTree(t, dir), b, Options{})
	if err != nil || stats.Failed != 0 || second.Name() == first.Name() {
		t.Errorf("%s %+v, %v", stats, stats.Failures, err)
	}
	back := t.TempDir()
	if _, _, err := Restore(t.Context(), openTree(t, back), b, second, Options{Owners: true}); err != nil {
		t.Error(err)
	}
	sameTrees(t, dir, back)
	for _, name := range []string{"x", "-5", "007", "0", "99999999999999999999"} {
		if _, err := object.ParseVersion(name); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%s is a version: %v", name, err)
		}
	}
	for _, name := range []string{"", "latest"} {
		if v, err := object.ParseVersion(name); err != nil || !v.Time.IsZero() {
			t.Errorf("%q: %v, %v", name, v, err)
		}
	}
	far := loc
	far.Prefix = strings.Repeat("p/", tree.MaxKey/4)
	if _, err := openBucket(t, far).Version(first); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a version beneath a long prefix: %v", err)
	}
}

// A copy in parts that the server ends halfway, or answers without words, is not one.
func TestRefusedCopies(t *testing.T) {
	dir, loc := t.TempDir(), location(t)
	a := between(t, &loc)
	b := openBucket(t, loc)
	write(t, dir, "f", strings.Repeat("0123456789abcdef", 12<<16))
	mustSync(t, dir, b, Options{Direction: plan.Up})
	e, err := b.Stat(t.Context(), "f")
	must(t, err)
	source := loc.Bucket + "/" + loc.Prefix + "/f"
	for name, fault := range map[string]func(int, http.ResponseWriter, *http.Request) bool{
		"begin":    when("POST", "uploads=", 403, "AccessDenied"),
		"complete": when("POST", "uploadId=", 403, "AccessDenied"),
		"wordless": func(_ int, w http.ResponseWriter, r *http.Request) bool {
			return strings.Contains(r.URL.RawQuery, "partNumber")
		},
	} {
		a.reset(fault)
		if _, err := b.CopyParts(t.Context(), source, b.Prefix()+"g", e, 5<<20); err == nil {
			t.Errorf("%s: copied", name)
		}
		a.reset(nil)
		if begun(t.Context(), b, b.Prefix()+"g") != "" {
			t.Errorf("%s: parts are still there", name)
		}
	}
	big := *e
	big.Size = object.MaxCopy + 1
	if _, err := b.CopyEntry(t.Context(), b, &big); err == nil {
		t.Error("more was copied than there is")
	}
}

// TestStateFaults checks that local state that cannot be read or written is reported, and that nothing in the bucket is
// deleted because of it.
func TestStateFaults(t *testing.T) {
	dir, b := t.TempDir(), openBucket(t, location(t))
	for i := range 20 {
		write(t, dir, fmt.Sprintf("f%d", i), "x")
	}
	seeded := func(t *testing.T, parent string) (stateDir, place string) {
		stateDir = parent
		mustSync(t, dir, b, Options{Direction: plan.Up, State: stateDir})
		found, err := filepath.Glob(filepath.Join(stateDir, "*", state.Entries))
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		return stateDir, filepath.Dir(found[0])
	}
	full := func(path string) error { return errors.Join(os.RemoveAll(path), os.MkdirAll(path+"/x", 0o755)) }
	for name, hurt := range map[string]func(stateDir, place string) error{
		"a file": func(stateDir, _ string) error {
			return errors.Join(os.RemoveAll(stateDir),
				os.WriteFile(stateDir, nil, 0o600))
		},
		"etag":    func(_, place string) error { return full(filepath.Join(place, state.ETag)) },
		"next":    func(_, place string) error { return full(filepath.Join(place, state.Next)) },
		"before":  func(_, place string) error { return full(filepath.Join(place, state.Before)) },
		"entries": func(_, place string) error { return full(filepath.Join(place, state.Entries)) },
		"fetched": func(_, place string) error {
			return errors.Join(full(filepath.Join(place, state.Fetched)), os.Remove(filepath.Join(place, state.ETag)))
		},
		"dangling": func(_, place string) error { return os.Symlink("x/y", filepath.Join(place, state.Partial)) },
		"loop": func(_, place string) error {
			return os.Symlink(state.Partial, filepath.Join(place,
				state.Partial))
		},
	} {
		t.Run(name, func(t *testing.T) {
			stateDir, place := seeded(t, filepath.Join(t.TempDir(), "state"))
			must(t, hurt(stateDir, place))
			stats, err := Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Up, State: stateDir,
				Mirror: true})
			if err == nil || stats.Deleted != 0 {
				t.Errorf("%s, %v", stats, err)
			}
		})
	}
	t.Run("full disk", func(t *testing.T) {
		small := testenv.SmallDisk(t, "size=64k")
		seeded(t, small)
		_ = os.WriteFile(filepath.Join(small, "filler"), make([]byte, 64<<10), 0o600)
		stats, err := Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Up, State: small, Mirror: true})
		if err == nil || stats.Deleted != 0 {
			t.Errorf("with a full disk: %s, %v", stats, err)
		}
	})
	t.Setenv("TMPDIR", "/nonexistent")
	if _, err := Sync(t.Context(), openTree(t, dir), b, Options{Direction: plan.Up}); err == nil {
		t.Error("a sync without a place for its state")
	}
}

// TestForeignOdd checks that a sync handles odd foreign objects: invalid sizes, links with invalid bodies, large
// objects with metadata.
func TestForeignOdd(t *testing.T) {
	loc := location(t)
	a := between(t, &loc)
	b := openBucket(t, loc)
	put := func(key string, body []byte, meta map[string]string) {
		h := http.Header{}
		for k, v := range meta {
			h.Set("X-Amz-Meta-"+k, v)
		}
		_, err := b.Put(t.Context(), key, body, crc64nvme.Checksum(body), h)
		must(t, err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 17<<16)
	put("emptylink", nil, map[string]string{"file-permissions": "0120777"})
	put("largelink", large, map[string]string{"file-permissions": "0120777"})
	put("large", large, map[string]string{"mode": "0100600", "mtime": "1709210096.5"})
	put("small", []byte("s"), map[string]string{"mode": "0100600", "mtime": "1709210096.5"})
	back := t.TempDir()
	stats, err := Sync(t.Context(), openTree(t, back), b, Options{Direction: plan.Down})
	must(t, err)
	var failed []string
	for _, f := range stats.Failures {
		failed = append(failed, f.Path)
	}
	slices.Sort(failed)
	if want := []string{"emptylink", "largelink"}; !slices.Equal(failed, want) || stats.Files != 2 {
		t.Errorf("%s, failed %q, want %q", stats, failed, want)
	}
	for _, name := range []string{"large", "small"} {
		if info, err := os.Stat(filepath.Join(back, name)); err != nil || info.Mode() != 0o600 ||
			info.ModTime().UnixNano() != 1709210096500000000 {
			t.Errorf("%s came as %v, %v", name, info, err)
		}
	}
	// Again, with files of the same size and time: only the differing ones are downloaded.
	must(t, os.Chmod(filepath.Join(back, "small"), 0o644))
	if stats, err := Sync(t.Context(), openTree(t, back), b, Options{Direction: plan.Down, List: true}); err != nil ||
		stats.Failed != 2 {
		t.Errorf("again: %s %+v, %v", stats, stats.Failures, err)
	}
	if info, err := os.Stat(filepath.Join(back, "small")); err != nil || info.Mode() != 0o600 {
		t.Errorf("the mode is %v, %v", info.Mode(), err)
	}
	// Objects that vanish or change between the list and the fetch.
	a.reset(when("GET", "work/small", 412, "PreconditionFailed"))
	if stats, err := Sync(t.Context(), openTree(t, t.TempDir()), b, Options{Direction: plan.Down}); err != nil ||
		stats.Failed != 3 {
		t.Errorf("changed: %s %+v, %v", stats, stats.Failures, err)
	}
	a.reset(when("HEAD", "work/large", 403, "AccessDenied"))
	if stats, err := Sync(t.Context(), openTree(t, t.TempDir()), b, Options{Direction: plan.Down}); err != nil ||
		stats.Failed < 2 {
		t.Errorf("refused: %s %+v, %v", stats, stats.Failures, err)
	}
	a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodHead {
			return false
		}
		w.Header().Set("Transfer-Encoding", "chunked")
		w.WriteHeader(200)
		return true
	})
	if _, err := b.Stat(t.Context(), "small"); errors.KindOf(err) != errors.Invalid {
		t.Errorf("an object without a size: %v", err)
	}
}

// TestChangedWhileRestored checks that files stay that a person creates in the volume while a sync restores into it.
func TestChangedWhileRestored(t *testing.T) {
	dir, loc := t.TempDir(), location(t)
	a := between(t, &loc)
	b := openBucket(t, loc)
	write(t, dir, "f", "bucket's")
	write(t, dir, "g", "bucket's")
	must(t, os.Symlink("target", filepath.Join(dir, "l")))
	mustSync(t, dir, b, Options{Direction: plan.Up})
	for _, mirror := range []bool{false, true} {
		back := t.TempDir()
		write(t, back, "f", "mine")
		a.reset(func(_ int, _ http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "work/f") {
				write(t, back, "f", "mine, and newer")
			}
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "work/g") {
				_ = os.MkdirAll(filepath.Join(back, "g"), 0o755)
			}
			return false
		})
		stats, err := Sync(t.Context(), openTree(t, back), b, Options{Direction: plan.Down, Mirror: mirror})
		must(t, err)
		if raw, _ := os.ReadFile(filepath.Join(back, "f")); string(raw) != "mine, and newer" {
			t.Errorf("f is %q after %s", raw, stats)
		}
		if raw, err := os.ReadFile(filepath.Join(back, "g")); err == nil {
			t.Errorf("mirror %v: g is %q, %v", mirror, raw, err)
		}
		if stats.Failed == 0 {
			t.Errorf("nothing was said: %s", stats)
		}
	}
}

// Roles are assumed, with a secret of the caller's or a file of the machine, and an authority of one's own is trusted.
func TestRoles(t *testing.T) {
	loc := location(t)
	var asked []string
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		action := r.Form.Get("Action")
		asked = append(asked,
			action+" "+r.Form.Get("RoleArn")+" "+r.Form.Get("ExternalId")+r.Form.Get("WebIdentityToken"))
		w.Header().Set("Content-Type", "text/xml")
		fmt.Fprintf(w,
			`<%[1]sResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><%[1]sResult><Credentials><AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey><SessionToken></SessionToken><Expiration>2199-01-01T00:00:00Z</Expiration></Credentials></%[1]sResult></%[1]sResponse>`,
			action, s3test.AccessKey, s3test.SecretKey)
	}))
	t.Cleanup(sts.Close)
	t.Setenv("AWS_ENDPOINT_URL_STS", sts.URL)
	t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte("the-token"), 0o600))
	loc.Ambient, loc.RoleARN, loc.ExternalID = true, "arn:aws:iam::123456789012:role/sync", "outside"
	loc.AccessKeyID, loc.SecretAccessKey = "AKIAOTHER", "another"
	must(t, openBucket(t, loc).Check(t.Context()))
	loc.TokenFile = token
	must(t, openBucket(t, loc).Check(t.Context()))
	want := []string{"AssumeRole arn:aws:iam::123456789012:role/sync outside",
		"AssumeRoleWithWebIdentity arn:aws:iam::123456789012:role/sync the-token"}
	if !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	bad := filepath.Join(t.TempDir(), "config")
	must(t, os.WriteFile(bad, []byte("[profile x\n"), 0o600))
	t.Setenv("AWS_CONFIG_FILE", bad)
	t.Setenv("AWS_PROFILE", "x")
	if _, err := object.Open(t.Context(), loc); errors.KindOf(err) != errors.Unauthenticated {
		t.Errorf("a broken configuration: %v", err)
	}
}

func TestTLSAndProxy(t *testing.T) {
	loc := location(t)
	a := between(t, &loc)
	loc.Prefix = ""
	secure := httptest.NewTLSServer(a.Config.Handler)
	t.Cleanup(secure.Close)
	plain := loc
	loc.Endpoint = secure.URL
	loc.Patience = time.Second
	if err := openBucket(t, loc).Check(t.Context()); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("a server that nobody vouches for: %v", err)
	}
	loc.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	must(t, openBucket(t, loc).Check(t.Context()))
	plain.Proxy = a.URL
	plain.Endpoint = "http://s3.invalid"
	must(t, openBucket(t, plain).Check(t.Context()))
}

// TestOnlyManifestMissing checks that files sent by an interrupted sync get into the manifest of the next one, also if
// it has nothing else to send.
func TestOnlyManifestMissing(t *testing.T) {
	dir, loc, state := t.TempDir(), location(t), t.TempDir()
	a := between(t, &loc)
	b := openBucket(t, loc)
	write(t, dir, "old", "old")
	write(t, dir, "changed", "one")
	mustSync(t, dir, b, Options{Direction: plan.Up, State: state})
	write(t, dir, "new", "new")
	write(t, dir, "changed", "two")
	a.reset(when("PUT", "manifest", 403, "AccessDenied"))
	if _, err := Sync(t.Context(), openTree(t, dir), b,
		Options{Direction: plan.Up, State: state}); errors.KindOf(err) != errors.Denied {
		t.Fatalf("without a manifest: %v", err)
	}
	a.reset(nil)
	if stats := mustSync(t, dir, b, Options{Direction: plan.Up, State: state}); stats.Files != 0 {
		t.Errorf("sent again: %s", stats)
	}
	back := t.TempDir()
	mustSync(t, back, b, Options{Direction: plan.Down, Owners: true})
	sameTrees(t, dir, back)
}

// TestOddOptions checks a rate, and a sync without a direction.
func TestOddOptions(t *testing.T) {
	if (Stats{Bytes: 4, Duration: 2 * time.Second}).Rate() != 2 {
		t.Error("a rate")
	}
	b := openBucket(t, s3.Location{Bucket: "b", Region: "r-2"})
	if _, err := Sync(t.Context(), openTree(t, t.TempDir()), b, Options{}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("no direction: %v", err)
	}
}
