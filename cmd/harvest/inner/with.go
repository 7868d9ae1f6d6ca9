//go:build keeper

package inner

import _ "embed"

//go:embed keeper.zst
var packed []byte
