package volsync

import (
	"cmp"
	"flag"
	"io"
	"log"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"pgregory.net/rapid"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/object"
)

// TestModel checks that no content is lost without having been replaced or deleted, whatever the machines do and
// whenever their syncs overlap or are killed, and that all machines end with the same files. HARVEST_TEST_SEEDS sets
// the number of histories, each of 100 steps.
// mission: A8, D1, D2
func TestModel(t *testing.T) {
	model(t, func(*testing.T) modelServer {
		server := &strictServer{}
		loc := strictPlace(server)
		return modelServer{server, loc, server.contents}
	})
}

// TestModelEmbedded checks that the same holds on Harvest's embedded S3.
// mission: A8, D1, D2
func TestModelEmbedded(t *testing.T) {
	testenv.Long(t)
	model(t, func(t *testing.T) modelServer { return modelAt(t, location(t)) })
}

// modelAt is a place of any server.
func modelAt(t *testing.T, loc s3.Location) modelServer {
	t.Helper()
	target, err := url.Parse(loc.Endpoint)
	must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target) // it keeps the name of the host, which is signed
	proxy.Transport = modelTransport
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	direct := openBucket(t, loc)
	return modelServer{proxy, loc, func() map[string]string { return objectsOf(t, direct) }}
}

// modelTransport is one for all places: the histories are many, and their connections are to the same server.
var modelTransport = &http.Transport{MaxIdleConnsPerHost: 200}

// objectsOf returns all objects of a bucket, whatever the prefix of b.
func objectsOf(t *testing.T, b *object.Bucket) map[string]string {
	t.Helper()
	ctx := t.Context()
	all := map[string]string{}
	pages := sdk.NewListObjectsV2Paginator(sdkOf(b), &sdk.ListObjectsV2Input{Bucket: aws.String(b.Location().Bucket)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		must(t, err)
		for _, o := range page.Contents {
			out, err := sdkOf(b).GetObject(ctx, &sdk.GetObjectInput{Bucket: aws.String(b.Location().Bucket),
				Key: o.Key})
			var none *types.NoSuchKey
			if errors.As(err, &none) {
				continue // a request of a killed sync was still on its way
			}
			must(t, err)
			body, err := io.ReadAll(out.Body)
			must(t, err)
			must(t, out.Body.Close())
			all[aws.ToString(o.Key)] = string(body)
		}
	}
	return all
}

// quickModel limits the duration of the model without HARVEST_TEST_SEEDS. The remaining histories are skipped.
const quickModel = 20 * time.Second

// model tries histories, each at a new place. HARVEST_TEST_SEED repeats the history of one seed. Requests of a sync run
// in parallel, so a history may have to be repeated several times until it fails again.
func model(t *testing.T, place func(*testing.T) modelServer) {
	t.Helper()
	histories, steps, limit := 150, "40", quickModel
	if testing.Short() {
		histories = 30
	}
	if all := os.Getenv("HARVEST_TEST_SEEDS"); all != "" {
		n, err := strconv.Atoi(all)
		must(t, err)
		histories, steps, limit = n, "100", time.Duration(math.MaxInt64)
	}
	seed := rand.Uint64N(math.MaxInt64) + 1 // rapid chooses a seed of its own for 0
	if one := os.Getenv("HARVEST_TEST_SEED"); one != "" {
		var err error
		seed, err = strconv.ParseUint(one, 10, 64)
		must(t, err)
		histories, steps = 1, cmp.Or(os.Getenv("HARVEST_TEST_STEPS"), steps)
	}
	checks := "1"
	if testing.Short() {
		checks = "5" // rapid tries a fifth
	}
	for name, value := range map[string]string{"checks": checks, "steps": steps, "nofailfile": "true",
		"shrinktime": "15s"} {
		must(t, flag.Set("rapid."+name, value))
	}
	tried, begin := 0, time.Now()
	defer func() {
		if t.Failed() {
			t.Logf("history %d failed; to repeat it: HARVEST_TEST_SEED=%d HARVEST_TEST_STEPS=%s "+
				"go test -count=1 -run '^%s$' ./internal/s3/volsync", tried, seed, steps, t.Name())
		}
		t.Log(strconv.Itoa(tried) + " histories")
	}()
	for ; tried < histories && (tried == 0 || time.Since(begin) < limit); seed++ {
		tried++
		must(t, flag.Set("rapid.seed", strconv.FormatUint(seed, 10)))
		rapid.Check(unlogged{t}, func(rt *rapid.T) {
			w := newWorld(t, place(t))
			rt.Repeat(w.actions())
			w.finish(rt)
			w.close()
		})
	}
}

// unlogged is a test without the lines that rapid logs for each history and each choice.
type unlogged struct{ *testing.T }

// Log implements testing.TB.
func (unlogged) Log(...any) {}

// Logf implements testing.TB.
func (unlogged) Logf(string, ...any) {}

// contents are all objects.
func (s *strictServer) contents() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]string, len(s.objects))
	for key, o := range s.objects {
		all[key] = string(o.body)
	}
	return all
}
