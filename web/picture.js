// A picture in the sandbox. It is drawn on a canvas: the policy of the page allows no image from elsewhere, and a canvas
// runs nothing that a picture may contain.

import { h } from './dom.js';

export const isPicture = (path) => /\.(png|jpe?g|gif|webp|avif|bmp|ico)$/i.test(path);

export const mostPicture = 32 << 20; // bytes

// pictureOf returns the element with a picture. It fails if the browser cannot decode the data.
export async function pictureOf(blob, label) {
  const map = await createImageBitmap(blob);
  const canvas = h('canvas', { width: map.width, height: map.height, role: 'img', 'aria-label': label, class: 'shown-picture' });
  canvas.getContext('2d').drawImage(map, 0, 0);
  map.close();
  return [canvas, h('p', { class: 'meta' }, `${canvas.width} × ${canvas.height} pixels`)];
}
