package modal_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"github.com/oklog/ulid/v2"

	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// paged reads pages as SDKs do, each from the time of the last item of the page before, and requires that each item
// appears once. A page returns names and times. A client that gives a limit stops at the first page with fewer items.
func paged(t *testing.T, before float64, limit, want int,
	page func(before float64) (names []string, at []float64, err error)) {
	t.Helper()
	seen, pages := map[string]int{}, 0
	for ; pages <= want; pages++ {
		names, at, err := page(before)
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range names {
			seen[name]++
			if i > 0 && at[i] > at[i-1] {
				t.Errorf("%s is newer than the one before it", name)
			}
		}
		if len(names) < max(1, limit) {
			break
		}
		before = at[len(at)-1]
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s came %d times", name, n)
		}
	}
	if len(seen) != want || pages < 2 {
		t.Errorf("%d of %d came, on %d pages", len(seen), want, pages)
	}
}

// TestListsInPages checks that a client that reads a list in pages gets every item once, also items of the same time,
// in any order of their names.
func TestListsInPages(t *testing.T) {
	w := newWorld(t)
	first := time.Now().UTC().Add(-time.Hour)
	times := func(i int) time.Time { return first.Add(time.Duration(i/70) * time.Second) } // 70 at a time
	entropy := ulid.DefaultEntropy()
	for i := range 310 {
		born := times(i)
		named := times((i + 35) % 310) // their sandboxes were requested at the same time
		id := "sbx_" + strings.ToLower(ulid.MustNew(ulid.Timestamp(named), entropy).String())
		if err := w.boxes.Put(t.Context(), record.Sandbox{
			ID: id, Account: "personal", Status: record.Terminated, Created: born, Started: born,
			Expires: born, Ended: born,
			Tags: map[string]string{"modal/app": "app", "modal/environment": "main"},
		}); err != nil {
			t.Fatal(err)
		}
	}
	paged(t, 0, 0, 310, func(before float64) (names []string, at []float64, err error) {
		got, err := w.control.SandboxListV2(w.ctx(), pb.SandboxListRequest_builder{IncludeFinished: true,
			BeforeTimestamp: before}.Build())
		for _, sb := range got.GetSandboxes() {
			names, at = append(names, sb.GetId()), append(at, sb.GetCreatedAt())
		}
		return names, at, err
	})
	for i := range 25 {
		name := fmt.Sprintf("s%02d", i)
		if err := w.sealed.Put(t.Context(), secret.Record{Account: "personal", Name: name, Keys: []string{"A"},
			Sealed: []byte{}, Created: first.Add(time.Duration(i%6) * time.Second)}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.engine.Volumes().Create(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	const limit = 10
	asked := func(before float64) *pb.ListPagination {
		return pb.ListPagination_builder{MaxObjects: limit, CreatedBefore: before}.Build()
	}
	for _, before := range []float64{0, math.Inf(1),
		float64(time.Now().Unix() + 10)} { // Python's SDK begins with the last two
		paged(t, before, limit, 25, func(before float64) (names []string, at []float64, err error) {
			got, err := w.control.SecretList(w.ctx(), pb.SecretListRequest_builder{Pagination: asked(before)}.Build())
			for _, s := range got.GetItems() {
				names, at = append(names, s.GetLabel()), append(at, s.GetMetadata().GetCreationInfo().GetCreatedAt())
			}
			return names, at, err
		})
		paged(t, before, limit, 25, func(before float64) (names []string, at []float64, err error) {
			got, err := w.control.VolumeList(w.ctx(), pb.VolumeListRequest_builder{Pagination: asked(before)}.Build())
			for _, v := range got.GetItems() {
				names, at = append(names, v.GetMetadata().GetName()),
					append(at, v.GetMetadata().GetCreationInfo().GetCreatedAt())
			}
			return names, at, err
		})
	}
	if _, err := w.engine.Volumes().Create(t.Context(), "dev.data"); err != nil {
		t.Fatal(err)
	}
	got, err := w.control.VolumeList(w.ctx(), pb.VolumeListRequest_builder{EnvironmentName: "dev"}.Build())
	if items := got.GetItems(); err != nil || len(items) != 1 || items[0].GetLabel() != "data" {
		t.Errorf("an environment's volumes are %v, %v", items, err)
	}
}
