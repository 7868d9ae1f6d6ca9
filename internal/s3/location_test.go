package s3

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestPrefixes checks that a prefix is used as given or refused with a remedy: neither an empty name between slashes
// nor the reserved directory of another place is accepted.
// mission: 2.3, 3.3
func TestPrefixes(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"", "x", "x/", "x/y", "x/y/", ".harvester", "x/.harvest-old/y", "harvest"} {
		if err := (Location{Bucket: "b", Prefix: good}).Check(); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for prefix, want := range map[string]struct{ message, remedy string }{
		"/x":                     {"empty name", "write s3://b/x,"},
		"/":                      {"empty name", "write s3://b,"},
		"//":                     {"empty name", "write s3://b,"},
		"x//":                    {"empty name", "write s3://b/x,"},
		"x//y/":                  {"empty name", "write s3://b/x/y,"},
		".harvest":               {"its own objects", "without .harvest"},
		".harvest/x":             {"its own objects", "without .harvest"},
		"x/.harvest":             {"its own objects", "without .harvest"},
		"x/.harvest/y/":          {"its own objects", "without .harvest"},
		"/x//.harvest/":          {"its own objects", "without .harvest"},
		"x/../y":                 {"invalid prefix", "'..'"},
		"./x":                    {"invalid prefix", "'.'"},
		"x\x00y":                 {"invalid prefix", "names"},
		strings.Repeat("n", 300): {"invalid prefix", "names"},
	} {
		err := Location{Bucket: "b", Prefix: prefix}.Check()
		if errors.KindOf(err) != errors.Invalid || !strings.Contains(errors.Message(err), want.message) ||
			!strings.Contains(errors.RemedyOf(err), want.remedy) {
			t.Errorf("%q: %v; %s", prefix, err, errors.RemedyOf(err))
		}
	}
}
