package fleet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

func volumes(pairs ...string) []spec.Mount {
	var mounts []spec.Mount
	for i := 0; i < len(pairs); i += 2 {
		mounts = append(mounts, spec.Mount{Name: pairs[i], Path: pairs[i+1]})
	}
	return mounts
}

func many(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprint("k", i)] = ""
	}
	return m
}

func TestBadRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.open(t)
	for name, c := range map[string]struct {
		req   spec.Request
		kind  errors.Kind
		words []string
	}{
		"name with a slash":          {spec.Request{Name: "a/b"}, errors.Invalid, []string{`"a/b"`, "letters"}},
		"name with a leading dash":   {spec.Request{Name: "-a"}, errors.Invalid, []string{`"-a"`}},
		"name that is too long":      {spec.Request{Name: strings.Repeat("a", 64)}, errors.Invalid, []string{"63"}},
		"name that looks like an id": {spec.Request{Name: "sbx_a"}, errors.Invalid, []string{"sbx_"}},
		"host name": {spec.Request{Hostname: "a_b"}, errors.Invalid,
			[]string{`"a_b"`, "host name"}},
		"host name that is too long": {spec.Request{Hostname: strings.Repeat("a", 64)}, errors.Invalid,
			[]string{"host name", "1 to 63"}},
		"host name with a leading hyphen": {spec.Request{Hostname: "-a"}, errors.Invalid,
			[]string{`"-a"`, "host name", "not at the ends"}},
		"host name with a trailing hyphen": {spec.Request{Hostname: "a-"}, errors.Invalid,
			[]string{`"a-"`, "host name", "not at the ends"}},
		"image with a line break": {spec.Request{Image: "a\nb"}, errors.Invalid, []string{"image"}},
		"tag name": {spec.Request{Tags: map[string]string{"a b": ""}}, errors.Invalid,
			[]string{`"a b"`, "tag"}},
		"tag's value": {spec.Request{Tags: map[string]string{"a": "\x00"}}, errors.Invalid,
			[]string{`"a"`, "tag"}},
		"too many tags": {spec.Request{Tags: many(65)}, errors.Invalid, []string{"65 tags", "64"}},
		"env name with =": {spec.Request{Env: map[string]string{"A=B": "c"}}, errors.Invalid,
			[]string{`"A=B"`, "'='"}},
		"env name that is empty": {spec.Request{Env: map[string]string{"": "c"}}, errors.Invalid,
			[]string{`""`, "environment variable"}},
		"env value with NUL": {spec.Request{Env: map[string]string{"A": "b\x00"}}, errors.Invalid,
			[]string{`"A"`, "NUL"}},
		"env that is too large": {spec.Request{Env: map[string]string{"A": strings.Repeat("x", 1<<20)}},
			errors.Invalid, []string{"bytes", "file"}},
		"relative workdir": {spec.Request{Workdir: "work"}, errors.Invalid, []string{`"work"`, "absolute"}},
		"workdir with ..":  {spec.Request{Workdir: "/a/../b"}, errors.Invalid, []string{`"/a/../b"`}},
		"user":             {spec.Request{User: "a b"}, errors.Invalid, []string{`"a b"`, "user"}},
		"another engine": {spec.Request{Engine: "modal"}, errors.Unsupported,
			[]string{`"modal"`, "only stub"}},
		"volume with /": {spec.Request{Volumes: volumes("a/b", "/v")}, errors.Invalid,
			[]string{`"a/b"`, "volume"}},
		"volume ..": {spec.Request{Volumes: volumes("..", "/v")}, errors.Invalid,
			[]string{`".."`, "volume"}},
		"volume of 300 characters": {spec.Request{Volumes: volumes(strings.Repeat("v", 300), "/v")}, errors.Invalid,
			[]string{"volume", "128"}},
		"relative mount": {spec.Request{Volumes: volumes("v", "data")}, errors.Invalid,
			[]string{`"data"`, "absolute"}},
		"mount with a slash behind": {spec.Request{Volumes: volumes("v", "/data/")}, errors.Invalid,
			[]string{`"/data/"`}},
		"mount with ..": {spec.Request{Volumes: volumes("v", "/data/../etc")}, errors.Invalid,
			[]string{"'..'"}},
		"mount over the root": {spec.Request{Volumes: volumes("v", "/")}, errors.Invalid,
			[]string{"would cover /,"}},
		"mount over /proc": {spec.Request{Volumes: volumes("v", "/proc")}, errors.Invalid,
			[]string{"would cover /proc"}},
		"mount below /sys": {spec.Request{Volumes: volumes("v", "/sys/fs")}, errors.Invalid,
			[]string{"would cover /sys/fs"}},
		"mount over /dev": {spec.Request{Volumes: volumes("v", "/dev/shm")}, errors.Invalid,
			[]string{"would cover /dev/shm"}},
		"mount over /etc": {spec.Request{Volumes: volumes("v", "/etc")}, errors.Invalid,
			[]string{"would cover /etc"}},
		"mount over /usr/bin": {spec.Request{Volumes: volumes("v", "/usr/bin")}, errors.Invalid,
			[]string{"would cover /usr/bin"}},
		"mounts that are the same": {spec.Request{Volumes: volumes("v", "/v", "w", "/v")}, errors.Invalid,
			[]string{`"/v" and "/v" overlap`}},
		"mounts that overlap": {spec.Request{Volumes: volumes("v", "/v/w", "w", "/v")}, errors.Invalid,
			[]string{`"/v/w" and "/v" overlap`}},
		"too many mounts": {spec.Request{Volumes: make([]spec.Mount, 65)}, errors.Invalid,
			[]string{"65 volumes"}},
		"network default": {spec.Request{Network: spec.Network{Mode: "default"}}, errors.Unsupported,
			[]string{`the engine stub does not support networks`, `"none"`}},
		"network allow": {spec.Request{Network: spec.Network{Mode: "allow",
			Allow: []string{"x.org"}}}, errors.Unsupported, []string{`does not support networks`}},
		"network allow without it": {spec.Request{Network: spec.Network{Allow: []string{"x.org"}}},
			errors.Invalid, []string{"network.allow"}},
		"network none with rules": {spec.Request{Network: spec.Network{Mode: "none", Allow: []string{"x.org"}}},
			errors.Invalid, []string{"x.org"}},
		"network rule": {spec.Request{Network: spec.Network{Mode: "allow",
			Allow: []string{"http://x.org/"}}}, errors.Invalid, []string{"http://x.org/"}},
		"network deny rule": {spec.Request{Network: spec.Network{Mode: "none",
			Deny: []string{"10.0.0.0/99"}}}, errors.Invalid, []string{"10.0.0.0/99"}},
		"port 0": {spec.Request{Ports: []int{0}}, errors.Invalid,
			[]string{"invalid port 0", "65535"}},
		"port 65536": {spec.Request{Ports: []int{65536}}, errors.Invalid,
			[]string{"invalid port 65536"}},
		"port twice": {spec.Request{Ports: []int{80, 80}}, errors.Invalid,
			[]string{"port 80: given twice"}},
		"too many ports": {spec.Request{Ports: make([]int, 65)}, errors.Invalid, []string{"65 ports"}},
		"network of another kind": {spec.Request{Network: spec.Network{Mode: "odd"}}, errors.Invalid,
			[]string{`"odd"`}},
		"negative time limit": {spec.Request{TimeoutSeconds: -1}, errors.Invalid,
			[]string{"invalid timeout_seconds: -1", "604800"}},
		"time limit above a week": {spec.Request{TimeoutSeconds: 604801}, errors.Invalid,
			[]string{"invalid timeout_seconds: 604801"}},
		"infinite time limit": {spec.Request{TimeoutSeconds: math.Inf(1)}, errors.Invalid,
			[]string{"timeout_seconds"}},
		"idle limit that is none": {spec.Request{IdleTimeoutSeconds: math.NaN()}, errors.Invalid,
			[]string{"idle_timeout_seconds"}},
		"negative cpu":   {spec.Request{CPU: -1}, errors.Invalid, []string{"invalid cpu: -1"}},
		"hardly any cpu": {spec.Request{CPU: 0.001}, errors.Invalid, []string{"invalid cpu: 0.001"}},
		"cpu above the machine's": {spec.Request{CPU: 9}, errors.Invalid,
			[]string{"invalid cpu: 9", "has 8 cores"}},
		"cpu that is no number": {spec.Request{CPU: math.NaN()}, errors.Invalid, []string{"cpu"}},
		"memory of 1 KB": {spec.Request{Memory: 1000}, errors.Invalid,
			[]string{"invalid memory_bytes: 1000", "from 32MiB to 16GiB"}},
		"memory above the machine's": {spec.Request{Memory: 17 << 30}, errors.Invalid,
			[]string{"17GiB", "this machine has 16GiB"}},
		"negative memory": {spec.Request{Memory: -1}, errors.Invalid,
			[]string{"invalid memory_bytes: -1"}},
		"negative disk": {spec.Request{Disk: -1}, errors.Invalid, []string{"invalid disk_bytes: -1"}},
		"hardly any disk": {spec.Request{Disk: 10}, errors.Invalid,
			[]string{"invalid disk_bytes: 10", "1MiB"}},
		"negative processes": {spec.Request{Processes: -1}, errors.Invalid,
			[]string{"invalid processes: -1"}},
		"negative volume files": {spec.Request{VolumeFiles: -1}, errors.Invalid,
			[]string{"invalid volume_files: -1"}},
		"more than the server's": {spec.Request{VolumeFiles: 1 << 30}, errors.Invalid,
			[]string{"invalid volume_files: 1073741824", "up to 655360"}},
		"negative open files": {spec.Request{Files: -1}, errors.Invalid, []string{"invalid open_files: -1"}},
		"several at once": {
			spec.Request{Name: "a/b", Memory: 1, Network: spec.Network{Mode: "odd"},
				Volumes: volumes("..", "/proc")},
			errors.Invalid, []string{"5 things are wrong", `"a/b"`, "memory_bytes", `"odd"`, `".."`, "/proc"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := f.Create(t.Context(), account, c.req)
			wantError(t, err, c.kind, append(c.words, "| validate")...)
			if errors.RemedyOf(err) == "" {
				t.Errorf("%v has no remedy", err)
			}
		})
	}
	t.Cleanup(func() {
		if len(w.refs()) != 0 {
			t.Errorf("bad requests made sandboxes: %v", w.refs())
		}
	})
}

func TestGoodRequests(t *testing.T) {
	t.Parallel()
	f := newWorld(t).open(t)
	for name, req := range map[string]spec.Request{
		"a week":            {TimeoutSeconds: 604800, IdleTimeoutSeconds: 0.5},
		"mounts":            {Volumes: volumes("v", "/v", "w", "/vw", "x", "/var/lib/x", "y", "/mnt/state")},
		"the smallest":      {CPU: 0.01, Memory: 32 << 20, Disk: 1 << 20, Processes: 1, Files: 1},
		"the whole machine": {CPU: 8, Memory: 16 << 30},
		"users":             {User: "1000:1000"},
		"an empty value":    {Env: map[string]string{"A": "", "ünï": "ö=ä\n"}},
		"tags":              {Tags: map[string]string{"example.org/team": "größe, 10 cm"}},
		"names":             {Name: "A.b_c-1", Hostname: "a-1"},
		"longest host name": {Hostname: strings.Repeat("a", 63)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			create(t, f, req)
		})
	}
}

// A host name that the engine would ignore is refused.
//
// mission: A4
func TestHostnameOfEngine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.caps.Hostname = false
		_, err := w.open(t).Create(t.Context(), account, spec.Request{Hostname: "mine"})
		wantError(t, err, errors.Unsupported, "does not support host names of sandboxes", "omit hostname")
	})
}

// TestGPU checks that GPUs are refused by engines without GPUs.
//
// mission: A6
func TestGPU(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, err := w.open(t).Create(t.Context(), account, spec.Request{GPU: "T4"})
		wantError(t, err, errors.Unsupported, "the engine stub does not support GPUs", "omit gpu")
		w = newWorld(t)
		w.caps.GPUs = true
		f := w.open(t)
		sb := create(t, f, spec.Request{GPU: "A100-80GB:2"})
		if sb.GPU != "A100-80GB:2" || w.specs[0].GPU != sb.GPU {
			t.Errorf("%q, %q", sb.GPU, w.specs[0].GPU)
		}
		for _, bad := range []string{":2", "T4:0", "T4:100", "a card", strings.Repeat("x", 40)} {
			_, err := f.Create(t.Context(), account, spec.Request{GPU: bad})
			wantError(t, err, errors.Invalid, "invalid GPU", "A100:2")
		}
	})
}

// TestSecretsOfTheProvider checks that a secret that the engine's provider stores is resolved by the engine, for the
// server's own account only, and is not a secret of Harvest.
//
// mission: F3, F4
func TestSecretsOfTheProvider(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		_, err := w.open(t).Create(t.Context(), "personal", spec.Request{Secrets: []string{"stub:keys"}})
		wantError(t, err, errors.Unsupported, `secrets of "stub" are not supported`, "harvest secret ls")
		w = newWorld(t)
		w.caps.Secrets = true
		f := w.open(t)
		sb, err := f.Create(t.Context(), "personal", spec.Request{Secrets: []string{"stub:keys", "stub:more"}})
		if err != nil || !cmp.Equal(sb.Secrets, []string{"stub:keys", "stub:more"}) ||
			!cmp.Equal(w.specs[0].Secrets, []string{"keys", "more"}) {
			t.Errorf("%v, %v, %v", sb.Secrets, w.specs[0].Secrets, err)
		}
		_, err = f.Create(t.Context(), "acme", spec.Request{Secrets: []string{"stub:keys"}})
		wantError(t, err, errors.Denied, "for the account personal only", "harvest secret set")
		_, err = f.Create(t.Context(), "personal", spec.Request{Secrets: []string{"other:keys"}})
		wantError(t, err, errors.Unsupported, `secrets of "other" are not supported`)
		_, err = f.Create(t.Context(), "personal", spec.Request{Secrets: []string{"stub:a b"}})
		wantError(t, err, errors.Invalid, "cannot be a secret's name")
		_, err = f.Create(t.Context(), "personal",
			spec.Request{Secrets: []string{"stub:keys", "mine"}}) // it has no Vault
		wantError(t, err, errors.Unsupported, "does not support secrets")
	})
}

// FuzzDecodeRequest checks that a decoded request is unchanged after encoding and decoding it again, and that
// validating it returns at worst an error.
func FuzzDecodeRequest(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `{"image":"base","cpu":1e300}`, `{"volumes":[{"name":"v","path":"/v"},{"path":"/v/w"}]}`,
		`{"env":{"":"","A":"b"},"tags":null}`,
		`{"network":{"mode":"allow","allow":["*"]}}`, `{"timeout_seconds":-0.0,"idle_timeout_seconds":5e-324}`,
		`{"ports":[1],"odd":{}}`,
	} {
		f.Add([]byte(seed))
	}
	w := newWorld(f)
	w.caps.Volumes = false
	opts := w.opts
	opts.Engine, opts.Store, opts.Event = w.stub, w.store, nil
	fleet, err := fleet.Open(f.Context(), opts)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { fleet.Close(context.Background()) })
	f.Fuzz(func(t *testing.T, data []byte) {
		req, err := spec.Decode(data)
		if err != nil {
			if k := errors.KindOf(err); (k != errors.Invalid && k != errors.Unsupported) || errors.RemedyOf(err) == "" {
				t.Errorf("%q: %v (%s, remedy %q)", data, err, k, errors.RemedyOf(err))
			}
			return
		}
		encoded, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		again, err := spec.Decode(encoded)
		if diff := cmp.Diff(req, again, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", encoded, err, diff)
		}
		req.Image = "none" // it must not be created
		if _, err := fleet.Create(t.Context(), account, req); err == nil {
			t.Errorf("%s was created", data)
		}
	})
}
