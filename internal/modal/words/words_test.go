package words

import "testing"

func TestRemediesSpeakModalsWords(t *testing.T) {
	t.Parallel()
	const (
		secret = "store it with `harvest secret set`, and name that secret"
		quota  = "remove unused sandboxes, request less, or have the quota raised"
		doctor = "use an image that a registry has, or see \"harvest doctor\""
		images = "name an image that \"harvest image ls\" lists, or one of a registry"
		list   = "list sandboxes, including ended ones, with \"harvest sandbox ls --all\""
		detail = "create a new sandbox; for details of this one: harvest sandbox get sbx_1"
		named  = "keep the snapshot's ID, or name it with: harvest sandbox snapshot --name"
	)
	for text, want := range map[string]string{
		"end some, or create it with more --memory":        "end some, or create it with more memory",
		"end some, or create it with a higher --processes": "end some",
		"set a longer --timeout":                           "set a longer timeout",
		detail:                                             "create a new sandbox",
		list:                                               "look for it with Sandbox.list",
		images:                                             "name an image of a registry",
		named:                                              "keep the snapshot's ID",
		secret:                                             secret,
		quota:                                              quota,
		doctor:                                             doctor,
		"":                                                 "",
	} {
		if got := Remedy(text); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
