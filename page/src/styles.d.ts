// esbuild collects imported style sheets into page.css.
declare module "*.css" {}
