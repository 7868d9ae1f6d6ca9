package agent

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// registry is an npm registry with packages that print their names.
type registry struct {
	*httptest.Server
	mu       sync.Mutex
	packages map[string]map[string]map[string]string // name, version, files; guarded by mu
	asked    map[string]int                          // by path; guarded by mu
}

func newRegistry(t testing.TB) *registry {
	r := &registry{packages: map[string]map[string]map[string]string{}, asked: map[string]int{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

// add publishes a version whose only program prints its name, its version and its arguments.
func (r *registry) add(name, program string, versions ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.packages[name] == nil {
		r.packages[name] = map[string]map[string]string{}
	}
	for _, v := range versions {
		r.packages[name][v] = files(name, v, program)
	}
}

// count returns how often paths that contain part were requested.
func (r *registry) count(part string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for path, times := range r.asked {
		if strings.Contains(path, part) {
			n += times
		}
	}
	return n
}

func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	path, _ := url.PathUnescape(strings.TrimPrefix(req.URL.EscapedPath(), "/"))
	r.asked[path]++
	name, file, tarball := strings.Cut(path, "/-/")
	versions := r.packages[name]
	if versions == nil {
		http.Error(w, `{"error":"Not found"}`, http.StatusNotFound)
		return
	}
	if tarball {
		for v, files := range versions {
			if strings.HasSuffix(file, "-"+v+".tgz") {
				w.Write(pack(name, v, files))
				return
			}
		}
		http.NotFound(w, req)
		return
	}
	document := map[string]any{"name": name}
	all, latest := map[string]any{}, ""
	for v, files := range versions {
		all[v] = map[string]any{"name": name, "version": v, "dist": map[string]any{
			"tarball":   r.URL + "/" + name + "/-/" + name[strings.LastIndex(name, "/")+1:] + "-" + v + ".tgz",
			"integrity": sum(pack(name, v, files)),
		}}
		latest = max(latest, v)
	}
	document["versions"], document["dist-tags"] = all, map[string]string{"latest": latest}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(document)
}

// pack returns a package in npm's format.
func pack(name, version string, files map[string]string) []byte {
	manifest, _ := json.Marshal(map[string]string{"name": name, "version": version})
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	write := func(name, text string) {
		w.WriteHeader(&tar.Header{Name: "package/" + name, Mode: 0o755, Size: int64(len(text))})
		w.Write([]byte(text))
	}
	write("package.json", string(manifest))
	for name, text := range files {
		write(name, text)
	}
	w.Close()
	z.Close()
	return b.Bytes()
}

func files(name, version, program string) map[string]string {
	return map[string]string{program: "#!/bin/sh\necho \"" + name + " " + version + "\" \"$@\"\n"}
}

// integrityOf is the integrity in a package-lock.json for a package from add.
func integrityOf(name, version, program string) string {
	return sum(pack(name, version, files(name, version, program)))
}

func sum(data []byte) string {
	digest := sha512.Sum512(data)
	return "sha512-" + base64.StdEncoding.EncodeToString(digest[:])
}
