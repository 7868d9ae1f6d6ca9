package wire

import (
	"testing"
)

// A key made for one day, region or secret is no other's.
func TestSigningKeys(t *testing.T) {
	var s Signer
	seen := map[string]string{}
	for range 2 {
		for _, day := range []string{"20260101", "20260102"} {
			for _, region := range []string{"a", "b"} {
				for _, secret := range []string{"x", "y"} {
					key, id := string(s.keyFor(day, region, secret)), day+region+secret
					if other, ok := seen[key]; ok && other != id {
						t.Errorf("%s has the key of %s", id, other)
					}
					seen[key] = id
				}
			}
		}
	}
	if len(seen) != 8 {
		t.Errorf("%d keys", len(seen))
	}
}
