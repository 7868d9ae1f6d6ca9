package event_test

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/store"
)

func openFile(b *testing.B) *event.Journal {
	b.Helper()
	db, err := store.Open(b.Context(), filepath.Join(b.TempDir(), "db"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	return open(b, event.Options{Store: db.Events()})
}

func BenchmarkPublish(b *testing.B) {
	for _, writers := range []int{1, 16} {
		b.Run(fmt.Sprintf("%d writers", writers), func(b *testing.B) {
			j := openFile(b)
			b.SetParallelism(writers)
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for n := 0; pb.Next(); n++ {
					publish(b, j, "a", n)
				}
			})
		})
	}
}

// BenchmarkFanOut publishes 1,000 events a second and reports the time from Publish until the readers have them.
// mission: E10
func BenchmarkFanOut(b *testing.B) {
	for _, readers := range []int{1, 500} {
		b.Run(fmt.Sprintf("%d readers", readers), func(b *testing.B) {
			j := openFile(b)
			waits := make([][]time.Duration, readers)
			var wg sync.WaitGroup
			for i := range readers {
				r := subscribe(b, j, "a", 0)
				wg.Go(func() {
					var written int
					for after := int64(0); ; {
						batch, err := r.Next(b.Context())
						if errors.Is(err, io.EOF) {
							return
						}
						if err != nil || batch[0].ID != after+1 {
							b.Errorf("after %d: %v, %v", after, batch, err)
							return
						}
						now := time.Now()
						for _, e := range batch {
							waits[i] = append(waits[i], now.Sub(e.Time))
							written += len(e.Frame())
						}
						after = batch[len(batch)-1].ID
					}
				})
			}
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			b.ResetTimer()
			for n := range b.N {
				<-tick.C
				publish(b, j, "a", n)
			}
			shut(b, j)
			wg.Wait()
			all := slices.Concat(waits...)
			if len(all) != readers*b.N {
				b.Errorf("%d events arrived, want %d", len(all), readers*b.N)
			}
			slices.Sort(all)
			b.ReportMetric(all[len(all)/2].Seconds()*1000, "p50-ms")
			b.ReportMetric(all[len(all)*99/100].Seconds()*1000, "p99-ms")
		})
	}
}
