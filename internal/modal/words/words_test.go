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
		chmod  = "write --chmod=755 or --chmod=u=rwX,go=rX"

		accounts = "leave restricted out, or use accounts: harvest key create --account"
		checksum = "find out why the file has changed; if it is correct, update --checksum"

		named = "keep the snapshot's ID, or name it with: harvest sandbox snapshot --name"
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
		"give it with --secret id=key,src=FILE":            "give it with secrets",
		chmod:                                              chmod,
		accounts:                                           accounts,
		images + "; set a longer --timeout":                "name an image of a registry; set a longer timeout",
		checksum:                                           checksum,
		"":                                                 "",
	} {
		if got := Remedy(text); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
