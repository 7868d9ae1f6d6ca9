package server_test

import (
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
)

// mission: A4, F1
func TestWrittenFilesHaveTheTimeOfTheWrite(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	const file = "/v1/sandboxes/box/files?path=/dir/file"
	before := time.Now().Add(-time.Second)
	resp, body := w.do("PUT", file, "one")
	first := parse[api.File](t, body)
	if first.Modified.Before(before) || first.Modified.After(time.Now().Add(time.Second)) {
		t.Errorf("written at %v: %s", before, body)
	}
	if first.ETag == "" || resp.Header.Get("ETag") != first.ETag {
		t.Errorf("PUT answers with the ETag %q and %s", resp.Header.Get("ETag"), body)
	}
	// The same size and, as far as a file system shows it, the same time.
	_, body = w.do("PUT", file, "two")
	second := parse[api.File](t, body)
	stamp := second.Modified.Format(time.RFC3339Nano)
	w.want(200, "POST", "/v1/sandboxes/box/exec",
		`{"args":["sh","-c","printf 333 >dir/file; touch -d `+stamp+` dir/file"]}`)
	resp, body = w.do("GET", file, "")
	third := resp.Header.Get("ETag")
	if body != "333" || first.ETag == second.ETag || second.ETag == third || third == "" {
		t.Errorf("%q: ETags %q, %q and %q", body, first.ETag, second.ETag, third)
	}
	if resp, body := w.do("GET", file, "", "If-None-Match", second.ETag); resp.StatusCode != 200 || body != "333" {
		t.Errorf("If-None-Match with an old ETag: %s %q", resp.Status, body)
	}
	if resp, body := w.do("GET", file, "", "If-Range", second.ETag, "Range", "bytes=1-"); resp.StatusCode != 200 ||
		body != "333" {
		t.Errorf("If-Range with an old ETag: %s %q", resp.Status, body)
	}
	if resp, _ := w.do("GET", file, "", "If-Match", second.ETag); resp.StatusCode != 412 {
		t.Errorf("If-Match with an old ETag: %s", resp.Status)
	}
	_, body = w.do("GET", "/v1/sandboxes/box/files/list?path=/dir", "")
	if all := parse[api.List[api.File]](t, body).Data; len(all) != 1 || all[0].ETag != third {
		t.Errorf("list: %s, want the ETag %q", body, third)
	}
}

// mission: A4, F1
func TestConditionalWrites(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	const file = "/v1/sandboxes/box/files?path=/dir/file"
	refuse := func(method, body string, headers ...string) {
		t.Helper()
		if resp, answer := w.do(method, file, body, headers...); resp.StatusCode != 412 ||
			parse[api.Problem](t, answer).Remedy == "" {
			t.Errorf("%s %q: %s %s", method, headers, resp.Status, answer)
		}
	}
	content := func(want string) {
		t.Helper()
		if _, body := w.do("GET", file, ""); body != want {
			t.Errorf("the file is %q, want %q", body, want)
		}
	}
	refuse("PUT", "x", "If-Match", "*")
	refuse("PUT", "x", "If-Match", `"1-2-3-4"`)
	refuse("DELETE", "", "If-Match", "*")
	resp, _ := w.do("PUT", file, "one", "If-None-Match", "*")
	if resp.StatusCode != 200 {
		t.Fatalf("create: %s", resp.Status)
	}
	first := resp.Header.Get("ETag")
	refuse("PUT", "x", "If-None-Match", "*")
	refuse("PUT", "x", "If-None-Match", "W/"+first)
	refuse("PUT", "x", "If-Match", `"1-2-3-4"`)
	refuse("PUT", "x", "If-Match", "W/"+first) // weak tags do not match strongly
	refuse("DELETE", "", "If-None-Match", "*")
	content("one")
	if resp, _ = w.do("PUT", file, "two", "If-Match", `"none", `+first); resp.StatusCode != 200 {
		t.Fatalf("replace: %s", resp.Status)
	}
	second := resp.Header.Get("ETag")
	refuse("PUT", "x", "If-Match", first)
	refuse("DELETE", "", "If-Match", first)
	content("two")
	if resp, _ := w.do("PUT", file, "three", "If-None-Match", first); resp.StatusCode != 200 {
		t.Errorf("If-None-Match with another ETag: %s", resp.Status)
	}
	refuse("DELETE", "", "If-Match", second)
	if resp, _ := w.do("DELETE", file, "", "If-Match", "*"); resp.StatusCode != 204 {
		t.Errorf("delete: %s", resp.Status)
	}
	if _, body := w.do("GET", "/v1/sandboxes/box/files/list?path=/dir",
		""); len(parse[api.List[api.File]](t, body).Data) != 0 {
		t.Errorf("left behind: %s", body)
	}
}

// TestConditionalWritesRace checks that exactly one of many writers with the same ETag succeeds, and exactly one of
// many that create the same file.
func TestConditionalWritesRace(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.create()
	race := func(file string, header func() (string, string)) {
		t.Helper()
		name, value := header()
		var all sync.WaitGroup
		statuses := make(chan int, 8)
		for i := range cap(statuses) {
			all.Go(func() {
				resp, _ := w.do("PUT", file, fmt.Sprint("writer ", i), name, value)
				statuses <- resp.StatusCode
			})
		}
		all.Wait()
		close(statuses)
		count := map[int]int{}
		for s := range statuses {
			count[s]++
		}
		if count[http.StatusOK] != 1 || count[http.StatusPreconditionFailed] != 7 {
			t.Errorf("%s: %v", name, count)
		}
	}
	for i := range 5 {
		file := "/v1/sandboxes/box/files?path=" + url.QueryEscape(fmt.Sprint("/dir/", i))
		race(file, func() (string, string) { return "If-None-Match", "*" })
		race(file, func() (string, string) {
			resp, _ := w.do("HEAD", file, "")
			return "If-Match", resp.Header.Get("ETag")
		})
	}
}
